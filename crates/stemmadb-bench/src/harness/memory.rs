//! Peak memory of the current process, sampled from within.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::machine::{field, kibibytes};
use crate::Result;

/// Sampling interval.
const INTERVAL: Duration = Duration::from_millis(2);

/// Samples the process's anonymous resident memory (`RssAnon`).
pub(crate) struct MemoryWatch {
    peak_kib: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Peak resident memory in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peak {
    /// Anonymous memory of the process; sampled.
    pub(crate) anonymous_kib: u64,
    /// All resident memory including mapped files (`VmHWM`); exact.
    pub(crate) total_kib: u64,
}

impl MemoryWatch {
    /// Starts sampling.
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

    /// Stops sampling and returns the peak.
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

/// Returns a memory field of `/proc/<process>/status`, in KiB.
pub(crate) fn process_kib(process: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    field(&status, name).and_then(|value| kibibytes(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_memory_is_kept_after_release() {
        let watch = MemoryWatch::start();
        let bytes = vec![1_u8; 64 << 20];
        std::thread::sleep(20 * INTERVAL);
        assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 64 << 20);
        drop(bytes);
        let peak = watch.finish().unwrap();
        assert!(peak.anonymous_kib >= 64 << 10 && peak.total_kib >= peak.anonymous_kib, "{peak:?}");
    }
}
