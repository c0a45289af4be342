//! Renames that wait for a lock of another host, and whose process is sent a signal.

use crate::common::interrupted::{SOON, renames_end};
use crate::two::{over_postgres, over_redis};

#[test]
fn a_signal_ends_a_rename_that_waits_over_postgresql() {
    over_postgres(|two, _| {
        renames_end(&two.point(0), &two.point(1), SOON);
        two.finish();
    });
}

#[test]
fn a_signal_ends_a_rename_that_waits_over_redis() {
    over_redis(|two| {
        renames_end(&two.point(0), &two.point(1), SOON);
        two.finish();
    });
}
