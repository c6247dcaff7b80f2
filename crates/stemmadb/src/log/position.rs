//! Where in the log is it? A segment and an offset, in one word that sorts as the log does.

use std::fmt;

use super::segment::segment_name;

/// A place in the log. Opaque above this room: it may be kept, compared and moved within one payload, nothing else.
///
/// Layout: the segment's number in the upper 32 bits, the offset in its file in the lower 32, so positions order as the
/// log was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct LogPosition(u64);

impl LogPosition {
    /// Before everything: no frame lies here.
    pub(crate) const START: LogPosition = LogPosition(0);

    /// Behind everything.
    pub(super) const END: LogPosition = LogPosition(u64::MAX);

    pub(crate) const fn new(segment: u32, offset: u32) -> Self {
        LogPosition((segment as u64) << 32 | offset as u64)
    }

    /// The position as stored elsewhere (in the tree, say): [`LogPosition::from_u64`] gives it back.
    pub(crate) const fn to_u64(self) -> u64 {
        self.0
    }

    /// A stored position. Any number is one; reading at a wrong one is an error, never a panic.
    pub(crate) const fn from_u64(stored: u64) -> Self {
        LogPosition(stored)
    }

    /// The number of the segment this lies in.
    pub(crate) const fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The name of the segment's file, relative to the database's directory.
    pub(crate) fn segment_file(self) -> String {
        segment_name(self.segment())
    }

    /// The offset in the segment's file, in bytes.
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
    fn positions_sort_as_the_log_is_written() {
        assert!(LogPosition::START < LogPosition::new(1, 64));
        assert!(LogPosition::new(1, u32::MAX) < LogPosition::new(2, 0));
        assert!(LogPosition::new(2, 64) < LogPosition::new(2, 72));
    }

    #[test]
    fn a_position_survives_being_stored() {
        let position = LogPosition::new(3, 1234);
        assert_eq!(LogPosition::from_u64(position.to_u64()), position);
        assert_eq!(position.to_string(), "segment 3 offset 1234");
        assert_eq!(position.advance(6), LogPosition::new(3, 1240));
        assert_eq!(LogPosition::new(3, u32::MAX).advance(9).segment(), 3);
    }
}
