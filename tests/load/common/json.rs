//! Just enough JSON to read what `lockwood ... --json` prints.

use super::Res;
use std::iter::Peekable;
use std::str::Chars;

/// A JSON value. Numbers are kept as floating point: the counters that are read here fit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object, in the order written.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses a whole text.
    pub(crate) fn parse(text: &str) -> Res<Json> {
        let mut chars = text.chars().peekable();
        let value = value(&mut chars, 0)?;
        skip_space(&mut chars);
        if chars.next().is_some() { Err("JSON: text after the value".into()) } else { Ok(value) }
    }

    /// The text under a name at the top.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let Json::Object(fields) = self else { return None };
        match fields.iter().find(|(field, _)| field == name) {
            Some((_, Json::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// The number under a dotted name, whether written flat (`"locks.waits"`) or nested (`"locks": {"waits"`).
    pub(crate) fn number(&self, dotted: &str) -> Option<f64> {
        let Json::Object(fields) = self else { return None };
        for (name, value) in fields {
            if name == dotted {
                return if let Json::Number(n) = value { Some(*n) } else { None };
            }
            let inner = dotted.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('.'));
            if let Some(found) = inner.and_then(|rest| value.number(rest)) {
                return Some(found);
            }
        }
        None
    }
}

type Input<'a> = Peekable<Chars<'a>>;

fn skip_space(chars: &mut Input<'_>) {
    while chars.next_if(|c| c.is_whitespace()).is_some() {}
}

fn value(chars: &mut Input<'_>, depth: usize) -> Res<Json> {
    if depth > 64 {
        return Err("JSON: nested too deeply".into());
    }
    skip_space(chars);
    match chars.peek() {
        Some('{') => object(chars, depth),
        Some('[') => list(chars, depth),
        Some('"') => text(chars).map(Json::Text),
        Some(_) => word(chars),
        None => Err("JSON: nothing there".into()),
    }
}

fn object(chars: &mut Input<'_>, depth: usize) -> Res<Json> {
    chars.next();
    let mut fields = Vec::new();
    loop {
        skip_space(chars);
        match chars.peek() {
            Some('}') => {
                chars.next();
                return Ok(Json::Object(fields));
            }
            Some(',') if !fields.is_empty() => {
                chars.next();
            }
            Some('"') => {
                let name = text(chars)?;
                skip_space(chars);
                if chars.next() != Some(':') {
                    return Err(format!("JSON: no colon after \"{name}\""));
                }
                fields.push((name, value(chars, depth + 1)?));
            }
            other => return Err(format!("JSON: {other:?} in an object")),
        }
    }
}

fn list(chars: &mut Input<'_>, depth: usize) -> Res<Json> {
    chars.next();
    let mut items = Vec::new();
    loop {
        skip_space(chars);
        match chars.peek() {
            Some(']') => {
                chars.next();
                return Ok(Json::List(items));
            }
            Some(',') if !items.is_empty() => {
                chars.next();
            }
            Some(_) => items.push(value(chars, depth + 1)?),
            None => return Err("JSON: a list without an end".into()),
        }
    }
}

fn text(chars: &mut Input<'_>) -> Res<String> {
    chars.next();
    let mut out = String::new();
    loop {
        match chars.next().ok_or("JSON: a string without an end")? {
            '"' => return Ok(out),
            '\\' => match chars.next().ok_or("JSON: a string without an end")? {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'u' => {
                    let code: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&code, 16).map_err(|_| "JSON: a bad \\u escape")?;
                    out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
}

fn word(chars: &mut Input<'_>) -> Res<Json> {
    let mut word = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)) {
        word.push(c);
    }
    match word.as_str() {
        "null" => Ok(Json::Null),
        "true" => Ok(Json::Bool(true)),
        "false" => Ok(Json::Bool(false)),
        number => number.parse().map(Json::Number).map_err(|_| format!("JSON: \"{number}\" is no value")),
    }
}
