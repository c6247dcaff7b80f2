//! Processor time of this process, which excludes waiting for other processes on a busy machine.

use crate::Result;

/// Linux reports processor time in hundredths of a second.
const TICK_NS: u64 = 10_000_000;

/// Returns the total nanoseconds that this process's threads have run.
pub(crate) fn processor_ns() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    Ok(ticks(&stat).ok_or("the system does not say how long we ran")? * TICK_NS)
}

/// Sums user and system time. The process name before them may contain anything up to the last parenthesis.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added() {
        assert_eq!(ticks("7 (a) b) R 1 2 3 4 5 6 7 8 9 10 30 12 13 14"), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }
}
