//! TLS to real servers, by the command as people call it: a certificate of an authority that is trusted is taken; one of
//! another authority, one for another name, and a connection without TLS where it is demanded are refused, with words.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::common::{BINARY, Ran, run, skipped};
use crate::postgres::server::PostgresServer;
use crate::redis_server::RedisServer;

/// Two authorities, and a certificate that the first made for 127.0.0.1 and for no other name.
struct Certificates(TempDir);

impl Certificates {
    fn make() -> Option<Self> {
        let made = Self(tempfile::Builder::new().prefix("lockwood-tls-").tempdir().unwrap());
        let authority = |name: &str| {
            let words = ["-subj", &format!("/CN={name}"), "-addext", "basicConstraints=critical,CA:TRUE"];
            made.openssl(name, &words)
        };
        let (own, key) = (made.path("trusted.pem"), made.path("trusted.key"));
        let signed = ["-CA", own.to_str().unwrap(), "-CAkey", key.to_str().unwrap()];
        let names = ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"];
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let all = authority("trusted")
            && authority("other")
            && made.openssl("server", &[&signed[..], &names, &leaf].concat());
        if !all {
            skipped("openssl 3 is not installed; TLS was not tested");
        }
        all.then_some(made)
    }

    fn openssl(&self, name: &str, words: &[&str]) -> bool {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "2"])
            .args(words)
            .arg("-out")
            .arg(self.path(&format!("{name}.pem")))
            .arg("-keyout")
            .arg(self.path(&format!("{name}.key")))
            .output();
        made.is_ok_and(|made| made.status.success())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The command, which trusts these certificates alone where its URL names none.
fn lockwood(words: &[&str], trusts: &Path) -> Ran {
    run(Command::new(BINARY).args(words).env("SSL_CERT_FILE", trusts))
}

#[test]
fn redis_is_believed_by_the_right_authority_alone() {
    let Some(certificates) = Certificates::make() else { return };
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let [certificate, key] = ["server.pem", "server.key"].map(|name| certificates.path(name));
    let words = ["--appendonly", "yes", "--tls-auth-clients", "no", "--tls-port", &port.to_string()]
        .map(str::to_owned);
    let files = ["--tls-cert-file", certificate.to_str().unwrap(), "--tls-key-file", key.to_str().unwrap()];
    let words: Vec<&str> = words.iter().map(String::as_str).chain(files).collect();
    let Some(_server) = RedisServer::start_with(&words) else { return };
    let [trusted, other] = ["trusted.pem", "other.pem"].map(|name| certificates.path(name));
    let url = format!("rediss://127.0.0.1:{port}");
    let refused = lockwood(&["format", &url], &other).refused();
    assert!(refused.contains("certificate") && refused.contains(&url), "{refused}");
    lockwood(&["format", &url], &trusted).ok();
    assert!(lockwood(&["check", &url], &trusted).ok().contains("clean"));
    assert!(lockwood(&["status", &url], &other).refused().contains("certificate"));
    let refused = lockwood(&["status", &format!("rediss://localhost:{port}")], &trusted).refused();
    assert!(refused.contains("certificate"), "{refused}");
    assert!(
        lockwood(&["status", &format!("redis://127.0.0.1:{port}")], &trusted).refused().contains("rediss://")
    );
}

#[test]
fn postgresql_is_believed_by_the_right_authority_alone() {
    let Some(certificates) = Certificates::make() else { return };
    let Some(server) = PostgresServer::start() else { return };
    server.speak_tls(&certificates.path("server.pem"), &certificates.path("server.key"));
    server.allow_first("hostnossl lockwood all 127.0.0.1/32 reject");
    let url = |host: &str, mode: &str, authority: &str| {
        let [port, file] = [server.port().to_string(), certificates.path(authority).display().to_string()];
        format!("postgres://lockwood@{host}:{port}/lockwood?sslmode={mode}&sslrootcert={file}")
    };
    let nobody = certificates.path("other.pem");
    let ask = |verb: &str, url: &str| lockwood(&[verb, url], &nobody);
    for mode in ["require", "verify-full"] {
        let refused = ask("format", &url("127.0.0.1", mode, "other.pem")).refused();
        assert!(refused.contains("certificate"), "{refused}");
    }
    let right = url("127.0.0.1", "verify-full", "trusted.pem");
    ask("format", &right).ok();
    assert!(ask("check", &right).ok().contains("clean"));
    let refused = ask("status", &url("localhost", "verify-full", "trusted.pem")).refused();
    assert!(refused.contains("certificate"), "{refused}");
    let plain = ask("status", &url("127.0.0.1", "disable", "trusted.pem")).refused();
    assert!(plain.contains("no encryption") || plain.contains("SSL") || plain.contains("TLS"), "{plain}");
    let missing = ask("status", &url("127.0.0.1", "verify-full", "missing.pem")).refused();
    assert!(missing.contains("missing.pem"), "{missing}");
}
