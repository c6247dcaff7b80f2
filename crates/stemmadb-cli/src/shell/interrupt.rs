//! Interrupts (Ctrl-C): in the shell they cancel the running command, not the shell.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Exit, Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Installs a handler: from now on an interrupt sets a flag instead of ending the process.
pub(crate) fn catch() {
    // If no handler can be installed, an interrupt ends the process; acknowledged writes are not lost.
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)).ok();
}

/// Clears the flag.
pub(crate) fn clear() {
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Whether an interrupt was received.
pub(crate) fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails silently if an interrupt was received.
pub(crate) fn check() -> Result<()> {
    if happened() { Err(Failure::silent(Exit::Done)) } else { Ok(()) }
}
