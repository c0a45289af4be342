//! The `lockwood` command.

fn main() {}
