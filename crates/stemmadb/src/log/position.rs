//! Log position: a segment number and an offset in one word that sorts in log order.

use std::fmt;

use super::segment::segment_name;

/// A position in the log. Opaque to callers outside this module: it may be stored, compared and moved within one
/// payload.
///
/// Layout: the segment number in the upper 32 bits and the offset in its file in the lower 32, so positions sort in the
/// order in which the log was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct LogPosition(u64);

impl LogPosition {
    /// Before every frame; no frame is at this position.
    pub(crate) const START: LogPosition = LogPosition(0);

    /// After every frame.
    pub(super) const END: LogPosition = LogPosition(u64::MAX);

    pub(crate) const fn new(segment: u32, offset: u32) -> Self {
        LogPosition((segment as u64) << 32 | offset as u64)
    }

    /// The position as a number to store; [`LogPosition::from_u64`] is the inverse.
    pub(crate) const fn to_u64(self) -> u64 {
        self.0
    }

    /// A stored position. Any number is accepted; reading at a wrong position is an error, never a panic.
    pub(crate) const fn from_u64(stored: u64) -> Self {
        LogPosition(stored)
    }

    /// The segment number.
    pub(crate) const fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The name of the segment file, relative to the database directory.
    pub(crate) fn segment_file(self) -> String {
        segment_name(self.segment())
    }

    /// The offset in the segment file, in bytes.
    pub(crate) const fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The position `bytes` before this one in the same payload.
    #[must_use]
    pub(crate) const fn back(self, bytes: u32) -> Self {
        LogPosition::new(self.segment(), self.offset().saturating_sub(bytes))
    }

    /// The position `bytes` further in the same payload.
    #[must_use]
    pub(crate) const fn advance(self, bytes: u32) -> Self {
        LogPosition::new(self.segment(), self.offset().saturating_add(bytes))
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {}", self.segment(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_sort_in_log_order() {
        assert!(LogPosition::START < LogPosition::new(1, 64));
        assert!(LogPosition::new(1, u32::MAX) < LogPosition::new(2, 0));
        assert!(LogPosition::new(2, 64) < LogPosition::new(2, 72));
    }

    #[test]
    fn position_round_trips_through_its_stored_form() {
        let position = LogPosition::new(3, 1234);
        assert_eq!(LogPosition::from_u64(position.to_u64()), position);
        assert_eq!(position.to_string(), "segment 3 offset 1234");
        assert_eq!(position.advance(6), LogPosition::new(3, 1240));
        assert_eq!(LogPosition::new(3, u32::MAX).advance(9).segment(), 3);
    }
}
