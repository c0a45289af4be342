//! Engines against real servers: each test starts one of its own, and says so loudly if it cannot.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test: what goes wrong has failed it.
#![allow(clippy::disallowed_methods)] // It measures real time with real threads.

#[path = "../common/mod.rs"]
mod common;

mod advisory;
mod contents;
mod failover;
mod in_doubt;
mod kept;
mod killed;
mod maps;
mod moved;
mod opens;
mod opensearch;
mod postgres;
mod power;
mod recovery;
#[allow(dead_code, reason = "its other users need the rest")]
mod redis_server;
mod redlock;
mod search_server;
mod signals;
mod tls;
mod two;
mod unmounts;
mod write_back;
