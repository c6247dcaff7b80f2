//! Watches over connections whose thread executes a request for long: another thread takes over reading, so that
//! further requests, cancellations and credit are received.
//!
//! The monitor's thread sleeps while no requests arrive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::server::WireServer;

/// How often running requests are looked at.
const TICK: Duration = Duration::from_millis(2);
/// The ticks without a new request after which the monitor sleeps.
const QUIET_TICKS: u32 = 100;

/// How often snapshots whose time is over are closed while no requests arrive.
const SNAPSHOT_TICK: Duration = Duration::from_secs(5);

/// Wakes the monitor's thread, and ends it.
#[derive(Default)]
pub(super) struct Monitor {
    is_awake: AtomicBool,
    /// Counts requests.
    request_count: AtomicU64,
    is_stopped: Mutex<bool>,
    wake: Condvar,
}

impl Monitor {
    /// Counts a request that begins.
    pub(super) fn note_request(&self) {
        self.request_count.fetch_add(1, Ordering::SeqCst);
        if !self.is_awake.load(Ordering::SeqCst) {
            let _guard = self.is_stopped.lock();
            self.is_awake.store(true, Ordering::SeqCst);
            self.wake.notify_one();
        }
    }

    /// Ends the monitor.
    pub(super) fn stop(&self) {
        *self.is_stopped.lock() = true;
        self.wake.notify_one();
    }

    /// Runs until [`Monitor::stop`], or until the server is dropped.
    pub(super) fn run(self: &Arc<Self>, server: &Weak<WireServer>) {
        let mut seen = 0;
        let mut quiet_ticks = 0;
        loop {
            {
                let mut is_stopped = self.is_stopped.lock();
                if !*is_stopped {
                    match quiet_ticks < QUIET_TICKS {
                        true => drop(self.wake.wait_for(&mut is_stopped, TICK)),
                        false => {
                            self.is_awake.store(false, Ordering::SeqCst);
                            if self.request_count.load(Ordering::SeqCst) == seen {
                                let has_snapshots =
                                    server.upgrade().is_some_and(|server| server.snapshots.close_expired());
                                match has_snapshots {
                                    true => drop(self.wake.wait_for(&mut is_stopped, SNAPSHOT_TICK)),
                                    false => self.wake.wait(&mut is_stopped),
                                }
                            }
                            self.is_awake.store(true, Ordering::SeqCst);
                            quiet_ticks = 0;
                        }
                    }
                }
                if *is_stopped {
                    return;
                }
            }
            let Some(server) = server.upgrade() else { return };
            let is_busy = server.hand_over_reading();
            let count = self.request_count.load(Ordering::SeqCst);
            quiet_ticks = if is_busy || count != seen { 0 } else { quiet_ticks + 1 };
            seen = count;
        }
    }
}
