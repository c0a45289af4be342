//! What people are told when a server is no store, or has no volume.

use std::process::Command;

use super::redis_server::free_port;
use super::*;
use crate::ambient::monotonic;

fn refused(url: &str, options: Options) -> String {
    let error = open(url, options).map(drop).unwrap_err().to_string();
    assert!(!error.contains("s3cret"), "the password is shown: {error}");
    error
}

#[test]
fn volumes() {
    let Some(server) = RedisServer::start() else { return };
    let url = server.url("lockwood");
    let commit = Commit::format(volume(), 0, 0);
    assert!(refused(&url, options()).contains("no volume under this prefix; make one with: lockwood format"));
    format(&url, options(), &commit).unwrap();
    assert_eq!(open(&url, options()).unwrap().1, volume());
    let occupied = |result: Result<RedisStore, OpenError>| match result.map(drop) {
        Err(OpenError::Occupied { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(occupied(format(&url, options(), &commit)), "there is a volume");
    format(&server.url("other"), options(), &commit).unwrap();
    let connection = &mut admin(&server);
    say(connection, &["HSET", "{other}:volume", "format", "2"]);
    assert!(refused(&server.url("other"), options()).contains("newer than this program's"));
    say(connection, &["DEL", "{other}:volume"]);
    assert!(occupied(format(&server.url("other"), options(), &commit)).contains("remains"));
}

#[test]
fn servers_that_forget() {
    let Some(server) = RedisServer::start_with(&[]) else { return };
    let url = server.url("v");
    assert!(refused(&url, options()).contains("appendonly yes"));
    let volatile = || Options { allow_volatile: true, ..options() };
    assert_eq!(connect(&url, volatile()).unwrap().0.persistence(), Persistence::Volatile);
    let connection = &mut admin(&server);
    say(connection, &["CONFIG", "SET", "appendonly", "yes"]);
    say(connection, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert!(refused(&url, options()).contains("maxmemory-policy noeviction"));
    say(connection, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    for (fsync, durability) in [
        ("always", Persistence::Always),
        ("everysec", Persistence::EverySecond { waits: false }),
        ("no", Persistence::Kernel),
    ] {
        say(connection, &["CONFIG", "SET", "appendfsync", fsync]);
        let found = connect(&url, options()).unwrap().0.persistence();
        let same = match found {
            Persistence::EverySecond { .. } => matches!(durability, Persistence::EverySecond { .. }),
            found => found == durability,
        };
        assert!(same, "{found:?}");
    }
}

#[test]
fn users_and_rights() {
    let Some(server) = RedisServer::start() else { return };
    let connection = &mut admin(&server);
    // The rules of docs/redis.md.
    let rights = include_str!("../../../../docs/redis.md")
        .lines()
        .find_map(|l| l.strip_prefix("ACL SETUSER lockwood "));
    let rights = rights.unwrap().replace("PASSWORD", "s3cret");
    let words: Vec<&str> =
        ["ACL", "SETUSER", "lockwood"].into_iter().chain(rights.split_whitespace()).collect();
    say(connection, &words);
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}?prefix=lockwood", server.port());
    let good = connect(&url("lockwood:s3cret@"), options()).unwrap().0;
    good.commit(&Commit::new().put(node(1), directory(0)).put(entry("a"), file())).unwrap();
    good.commit(&Commit::new().delete(node(1)).delete(entry("a"))).unwrap();
    assert!(refused(&url("lockwood:wrong@"), options()).contains("does not take this user and password"));
    assert!(refused(&url("lockwood:s3cret@").replace("=lockwood", "=other"), options()).contains("ACL"));
    say(connection, &["ACL", "SETUSER", "lockwood", "-info", "-config"]);
    assert!(refused(&url("lockwood:s3cret@"), options()).contains("forbids both CONFIG GET and INFO"));
    say(connection, &["ACL", "SETUSER", "lockwood", "+info", "-zrem"]);
    assert!(refused(&url("lockwood:s3cret@"), options()).contains("ACL"), "found out before a commit does");
    say(connection, &["ACL", "SETUSER", "lockwood", "+zrem"]);
    assert_eq!(connect(&url("lockwood:s3cret@"), options()).unwrap().0.persistence(), Persistence::Unsaid);
    say(connection, &["CONFIG", "SET", "requirepass", "s3cret"]);
    assert!(refused(&url(""), options()).contains("does not take this user and password"));
    let given = Options { password: Some("s3cret".to_owned()), ..options() };
    assert!(!format!("{given:?}").contains("s3cret"));
    assert!(refused(&url(""), given).contains("no volume"));
}

#[test]
fn servers_that_are_away_or_take_no_changes() {
    let Some(mut server) = RedisServer::start() else { return };
    let url = server.url("v");
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let short = || Options { patience: Duration::from_millis(300), ..options() };
    let begun = monotonic();
    assert!(refused(&nobody, short()).contains("nothing listens there"));
    assert!((Duration::from_millis(300)..Duration::from_secs(3)).contains(&begun.elapsed()));
    let store = store(&url);
    store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    let impatient = connect(&url, short()).unwrap().0;
    let connection = &mut admin(&server);
    say(connection, &["REPLICAOF", "127.0.0.1", "1"]);
    assert!(refused(&url, options()).contains("the server is a replica"));
    let error = impatient.commit(&Commit::new().put(node(1), directory(1))).unwrap_err().to_string();
    assert!(error.contains(&server.port().to_string()), "{error}");
    say(connection, &["REPLICAOF", "NO", "ONE"]);
    impatient.commit(&Commit::new().put(node(1), directory(1))).unwrap();
    server.kill();
    let error = impatient.get(&node(1)).unwrap_err().to_string();
    assert!(error.contains("nothing listens there"), "{error}");
    let outage = impatient.outage().unwrap();
    assert!(
        outage.cause.contains(&server.port().to_string()) && outage.since.elapsed().is_ok(),
        "{outage:?}"
    );
    let error = impatient.commit(&Commit::new()).unwrap_err();
    assert!(
        matches!(&error, CommitError::Store(StoreError::Engine { .. } | StoreError::Unknown(_))),
        "{error}"
    );
    // A machine that starts mounts and servers at the same time.
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| connect(&url, options()));
        std::thread::sleep(Duration::from_millis(500));
        server.restart();
        assert!(opened.join().unwrap().is_ok(), "a server that comes in time is waited for");
    });
}

#[test]
fn a_server_that_cannot_save() {
    let Some(server) = RedisServer::start_with(&["--appendonly", "yes", "--dbfilename", "dump.rdb"]) else {
        return;
    };
    let store = store(&server.url("v"));
    let connection = &mut admin(&server);
    // A directory where the file should go: saving fails.
    say(connection, &["CONFIG", "SET", "save", "3600 1"]);
    std::fs::create_dir_all(server.dir().join("dump.rdb/x")).unwrap();
    let _ = ask_for(&["BGSAVE"]).query::<Value>(connection);
    for _ in 0..200 {
        let info: String = ask_for(&["INFO", "persistence"]).query(connection).unwrap();
        if info.contains("rdb_last_bgsave_status:err") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let error = store.commit(&Commit::new().put(node(1), directory(0))).unwrap_err().to_string();
    assert!(error.contains("cannot write its data to disk"), "{error}");
    assert_eq!(store.get(&node(1)).unwrap(), None);
}

/// The certificates that a host trusts come from the environment, so this runs the test below in a process of its own.
#[test]
fn encrypted() {
    if RedisServer::start().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name).display().to_string());
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-out", &certificate, "-keyout", &key])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("\n*** SKIPPED: openssl is not installed; TLS was not tested ***\n");
        return;
    }
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::redis::tests::opening::encrypted_here", "--ignored", "--nocapture"])
        .env("SSL_CERT_FILE", &certificate)
        .env("LOCKWOOD_TEST_TLS", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr) + String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "run by `encrypted`"]
fn encrypted_here() {
    let dir = std::path::PathBuf::from(std::env::var_os("LOCKWOOD_TEST_TLS").unwrap());
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.join(name).display().to_string());
    let tls = free_port();
    let port = tls.to_string();
    let words = ["--appendonly", "yes", "--tls-auth-clients", "no", "--tls-port", &port, "--tls-cert-file"];
    let words = [&words[..], &[&certificate, "--tls-key-file", &key]].concat();
    let Some(server) = RedisServer::start_with(&words) else { return };
    let store = store(&format!("rediss://127.0.0.1:{tls}?prefix=v"));
    let version = store.commit(&Commit::new().put(node(1), directory(0))).unwrap();
    assert_eq!(store.get(&node(1)).unwrap().unwrap().version, version);
    assert!(refused(&format!("redis://127.0.0.1:{tls}"), options()).contains("rediss://"));
    assert!(refused(&format!("rediss://127.0.0.1:{}", server.port()), options()).contains("redis://"));
}
