//! A commit as one statement, which is a transaction by itself: nothing stands between its parts, and one answer comes back.
//!
//! Each part is a common table expression. The outermost query asks for the verdicts in the order of the parts, and a part
//! runs when its verdict is asked for: so locks are taken in the order that `plan` says, and the first verdict that is no
//! number ends all. The version is drawn by an expression of its own that the parts refer to.
//!
//! All parts see the tables as they were when the statement began. That is enough: whatever they find by it they lock, and
//! under READ COMMITTED look again at what they have locked, in its newest version. What came since is not found, and so
//! refused: all that a commit can rest on was read before. But no part sees what another one did, so a document that two
//! parts are about needs statements one by one.

use crate::document::Kind;
use crate::store::Durability;

use super::tables::{Action, CLOSED, Statement, VERSION, statement};

/// What a statement does, part by part.
pub(super) type Parts = [(Kind, Action)];

/// The statement. Its parameters are those of the parts, then the connection and the number of the commit where that is
/// noted. Its last column is the version.
pub(super) fn sql(parts: &Parts, durability: Durability) -> String {
    let mut expressions = vec!["drawn AS (SELECT nextval('versions') AS version)".to_owned()];
    let mut verdicts = Vec::with_capacity(parts.len() + 2);
    let mut params = 0;
    for (n, (kind, action)) in parts.iter().enumerate() {
        let Statement::Demand(demand) = statement(*kind, *action) else { continue };
        let query = demand.query.replace(VERSION, "(SELECT version FROM drawn)");
        expressions.push(format!("part{n} AS ({})", shifted(&query, params)));
        verdicts.push(demand.verdict(&format!("part{n}"), &format!(" at {n}")));
        params += greatest_parameter(&query);
    }
    match durability {
        Durability::Full => {
            let (connection, number) = (params + 1, params + 2);
            expressions.push(format!(
                "done AS (UPDATE outcome SET number = ${number}, version = (SELECT version FROM drawn), used = now() \
                 WHERE connection = ${connection} AND NOT closed RETURNING version)"
            ));
            verdicts.push(format!(
                "CAST(coalesce((SELECT CAST(version AS text) FROM done), '{CLOSED}') AS bigint)"
            ));
        }
        Durability::Delayed => {
            verdicts.push("set_config('synchronous_commit', 'off', true)".to_owned());
            verdicts.push("(SELECT version FROM drawn)".to_owned());
        }
    }
    format!("WITH {} SELECT {}", expressions.join(", "), verdicts.join(", "))
}

/// Which part the verdict that a message quotes is about. Each language quotes in its own way.
pub(super) fn part_of(message: &str) -> Option<usize> {
    let (_, at) = message.rsplit_once(" at ")?;
    let end = at.find(|c: char| !c.is_ascii_digit()).unwrap_or(at.len());
    at[..end].parse().ok()
}

/// The text between parameters, and each parameter's number with the text behind it.
fn split(sql: &str) -> (&str, impl Iterator<Item = (usize, &str)>) {
    let mut pieces = sql.split('$');
    let first = pieces.next().unwrap_or_default();
    let rest = pieces.map(|piece| {
        let digits = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
        (piece[..digits].parse().unwrap_or_default(), &piece[digits..])
    });
    (first, rest)
}

fn shifted(sql: &str, by: usize) -> String {
    let (first, rest) = split(sql);
    rest.fold(first.to_owned(), |text, (number, behind)| format!("{text}${}{behind}", number + by))
}

fn greatest_parameter(sql: &str) -> usize {
    split(sql).1.map(|(number, _)| number).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_through_all_parts() {
        let parts = [(Kind::Xattr, Action::DeleteVersion(1)), (Kind::Orphan, Action::Upsert)];
        let text = sql(&parts, Durability::Full);
        assert!(text.contains("ino = $1 AND name = $2 AND version = $3"), "{text}");
        assert!(text.contains("VALUES ($4, $5, (SELECT version FROM drawn))"), "{text}");
        assert!(text.contains("SET number = $7") && text.contains("connection = $6"), "{text}");
        assert_eq!(greatest_parameter(&text), 7);
        assert!(!text.contains(VERSION) && !text.contains("synchronous_commit"), "{text}");
        let delayed = sql(&parts, Durability::Delayed);
        assert_eq!(greatest_parameter(&delayed), 5);
        assert!(
            delayed.contains("'synchronous_commit', 'off', true)") && !delayed.contains("outcome"),
            "{delayed}"
        );
    }

    #[test]
    fn a_verdict_names_its_part() {
        for quoted in [
            "invalid input syntax for type bigint: \"lockwood: the document has changed at 12\"",
            "ungültige Eingabesyntax für Typ bigint: »lockwood: the document has changed at 12«",
        ] {
            assert_eq!(part_of(quoted), Some(12));
        }
        assert_eq!(part_of("lockwood: the connection was given up"), None);
    }
}
