//! Objects on a real S3 server: the protocol, credentials that are seen nowhere, and a server that goes away.

use std::fs;
use std::time::{Duration, Instant};

use super::s3_server::{BUCKET, KEY, S3Server, SECRET};
use super::{CHUNK, Volume, pattern, write_file};
use crate::common::{lockwood, until};

/// How long operations wait for a server that is away.
const SOFT_S: u64 = 2;

fn volume(server: &S3Server) -> Option<Volume> {
    let endpoint = format!("http://127.0.0.1:{}", server.port);
    let environment =
        [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_ENDPOINT_URL", &*endpoint)];
    Volume::format(|_| format!("s3://{BUCKET}/some/prefix"), &environment)
}

#[test]
fn contents_are_on_the_server_and_credentials_are_seen_nowhere() {
    let Some(server) = S3Server::start() else { return };
    let Some(volume) = volume(&server) else { return };
    volume.mount(0);
    volume.mount(1);
    let data = pattern(20 * CHUNK + 5);
    write_file(&volume.at(0, "big"), &data).unwrap();
    assert!(fs::read(volume.at(1, "big")).unwrap() == data, "the other mount reads other bytes");
    let (puts, gets) = (volume.requests(0, "puts"), volume.requests(1, "gets"));
    assert!(puts == 21 && (22..=26).contains(&gets), "{puts} and {gets} requests for 21 objects");
    fs::write(volume.at(1, "big"), &data[..7 * CHUNK]).unwrap();
    assert!(fs::read(volume.at(0, "big")).unwrap() == data[..7 * CHUNK]);
    volume.assert_clean();
    // Without credentials nobody gets in, and the error says where.
    let text = lockwood(["check", &volume.url]).refused();
    assert!(text.contains("some/prefix") && text.contains("volume.json"), "{text}");
    let document = volume.lockwood(&["get", &volume.url, "volume"]).ok();
    let mut seen =
        fs::read_to_string("/proc/self/mounts").unwrap() + &document + &volume.status(0).to_string();
    for at in [0, 1] {
        let pid = volume.status(at)["pid"].as_u64().unwrap();
        seen += &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap());
        seen += &fs::read_to_string(volume.log(at)).unwrap();
    }
    assert!(seen.contains("s3://trees/some/prefix") && !seen.contains(SECRET), "{seen}");
    fs::remove_file(volume.at(0, "big")).unwrap();
    volume.umount(0);
    volume.umount(1);
    volume.assert_clean();
    assert_eq!(volume.check(&[])["counts"]["objects"], 0);
}

#[test]
fn a_server_that_is_away_costs_a_bounded_wait_and_then_all_goes_on() {
    let Some(mut server) = S3Server::start() else { return };
    let Some(volume) = volume(&server) else { return };
    volume.try_mount(0, &format!(",soft={SOFT_S}")).ok();
    fs::write(volume.at(0, "before"), pattern(CHUNK)).unwrap();
    server.kill();
    let begun = Instant::now();
    let error = fs::write(volume.at(0, "away"), pattern(CHUNK)).unwrap_err();
    let waited = begun.elapsed();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(3 * SOFT_S + 4), "{waited:?}");
    let status = volume.status(0);
    assert!(status["objects"]["away"]["since"].is_string(), "{status}");
    // What needs no object goes on.
    fs::write(volume.at(0, "small"), b"small").unwrap();
    fs::rename(volume.at(0, "small"), volume.at(0, "renamed")).unwrap();
    let text = volume.try_mount(1, ",soft=0.5").refused();
    assert!(text.contains("s3://trees"), "{text}");
    server.run();
    until("it goes on", || fs::write(volume.at(0, "away"), pattern(CHUNK)).is_ok());
    assert!(volume.status(0)["objects"].get("away").is_none());
    assert!(fs::read(volume.at(0, "before")).unwrap() == pattern(CHUNK));
    volume.umount(0);
    assert_eq!(volume.check(&["--collect"])["counts"]["violations"], 0);
    volume.assert_clean();
}
