//! How much memory a process of its own needs: sampled from the inside, so that no peer counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::machine::{field, kibibytes};
use crate::Result;

/// How often it looks.
const INTERVAL: Duration = Duration::from_millis(2);

/// Watches this process's resident memory that is not a file's pages (`RssAnon`).
pub(crate) struct MemoryWatch {
    peak_kib: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// The most that was resident, in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peak {
    /// Anonymous memory: what the process itself holds. Sampled.
    pub(crate) anonymous_kib: u64,
    /// Everything, pages of mapped files too (`VmHWM`). Exact.
    pub(crate) total_kib: u64,
}

impl MemoryWatch {
    /// Begins to watch.
    pub(crate) fn start() -> Self {
        let (peak_kib, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (peak_kib, stop) = (peak_kib.clone(), stop.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    peak_kib.fetch_max(status_kib("RssAnon").unwrap_or(0), Ordering::Relaxed);
                    std::thread::sleep(INTERVAL);
                }
            }
        });
        MemoryWatch { peak_kib, stop, thread }
    }

    /// Ends watching.
    pub(crate) fn finish(self) -> Result<Peak> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the thread that watches memory failed")?;
        let total_kib = status_kib("VmHWM").ok_or("the system does not say how much memory we use")?;
        Ok(Peak { anonymous_kib: self.peak_kib.load(Ordering::Relaxed), total_kib })
    }
}

fn status_kib(name: &str) -> Option<u64> {
    process_kib(std::process::id(), name)
}

/// What a process holds, as its `/proc/…/status` has it under this name, in KiB.
pub(crate) fn process_kib(process: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    field(&status, name).and_then(|value| kibibytes(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_seen_after_it_is_gone() {
        let watch = MemoryWatch::start();
        let bytes = vec![1_u8; 64 << 20];
        std::thread::sleep(20 * INTERVAL);
        assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        drop(bytes);
        let peak = watch.finish().unwrap();
        assert!(peak.anonymous_kib >= 64 << 10 && peak.total_kib >= peak.anonymous_kib, "{peak:?}");
    }
}
