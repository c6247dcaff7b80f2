//! Processor time, which excludes waiting for other processes on a busy machine.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the nanoseconds that all threads of this process have run.
pub(crate) fn processor_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the nanoseconds that the calling thread has run.
pub(crate) fn thread_processor_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_other_threads_belongs_to_the_process() {
        let (process, thread) = (processor_ns(), thread_processor_ns());
        let other = std::thread::spawn(|| {
            let begin = thread_processor_ns();
            while thread_processor_ns() - begin < 20_000_000 {
                std::hint::spin_loop();
            }
        });
        other.join().unwrap();
        assert!(processor_ns() - process >= 20_000_000);
        assert!(thread_processor_ns() - thread < 20_000_000);
    }
}
