//! Has the user had enough? Within the shell, Ctrl-C ends what is running, not the shell.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt is remembered instead of ending the process.
pub(crate) fn catch() {
    // Where no handler can be set, an interrupt ends the process as it does everywhere: nothing acknowledged is lost.
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)).ok();
}

/// Forgets an interrupt that came before.
pub(crate) fn clear() {
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Whether an interrupt came.
pub(crate) fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Stops, without a word, if an interrupt came.
pub(crate) fn check() -> Result<()> {
    if happened() { Err(Failure::silent(Exit::Done)) } else { Ok(()) }
}
