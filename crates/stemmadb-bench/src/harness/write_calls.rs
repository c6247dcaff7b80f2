//! Write calls of the current thread, as the kernel counts them.

use super::machine::field;
use crate::Result;

/// Numbers of system calls that write, and of the bytes passed to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WriteCalls {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

impl WriteCalls {
    /// Returns the counts since the thread began.
    pub(crate) fn of_this_thread() -> Result<Self> {
        let file = "/proc/thread-self/io";
        let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        let count = |name: &str| -> Result<u64> {
            let value = field(&text, name).ok_or_else(|| format!("{file} has no {name}"))?;
            Ok(value.parse()?)
        };
        Ok(WriteCalls { calls: count("syscw")?, bytes: count("wchar")? })
    }

    /// Returns what was counted after `earlier`.
    pub(crate) fn since(self, earlier: WriteCalls) -> Self {
        WriteCalls { calls: self.calls - earlier.calls, bytes: self.bytes - earlier.bytes }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn writes_of_this_thread_are_counted() {
        let mut file = tempfile::tempfile().unwrap();
        let before = WriteCalls::of_this_thread().unwrap();
        file.write_all(&[7; 100]).unwrap();
        file.write_all(&[7; 11]).unwrap();
        let written = WriteCalls::of_this_thread().unwrap().since(before);
        assert_eq!(written, WriteCalls { calls: 2, bytes: 111 });
        std::thread::spawn(move || file.write_all(&[7; 100]).unwrap()).join().unwrap();
        assert_eq!(WriteCalls::of_this_thread().unwrap().since(before), written);
    }
}
