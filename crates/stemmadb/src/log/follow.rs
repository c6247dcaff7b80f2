//! Following a log that another process appends to: new frames are read where the last ones ended.
//!
//! The files show what their owner has written up to some point, and are complete up to there: frames are appended in
//! whole groups, and a segment is sealed before the next one gets its name. A segment is retired once a mark omits it.

use std::sync::Arc;

use super::frame::FrameKind;
use super::mark::ExpectedSegments;
use super::scan::Scanner;
use super::segment::{SEGMENT_HEADER_BYTES, Segment, open_segment, segment_name};
use super::shared::Shared;
use super::{Frame, Log, LogPosition, segment_numbers};
use crate::sync::atomic::Ordering;
use crate::{Error, Result};

/// What a follower knows of the end of the log.
#[derive(Default)]
pub(crate) struct FollowedEnd {
    /// Whether the last segment is sealed and the next one was not found.
    pub(crate) is_sealed: bool,
    /// The segments that the last mark lists.
    marked: Option<ExpectedSegments>,
}

type Visit<'a> = &'a mut dyn FnMut(Frame<'_>) -> Result<()>;

impl Log {
    /// Reads the frames that were added since the last call, and passes those with data to `visit`, in order. When a
    /// frame is visited, its records can be read.
    ///
    /// # Errors
    /// `Corrupt` if a frame is damaged, or the segment after the last one is missing and a later one exists. Errors of
    /// `visit` are returned unchanged; the next call goes on after that frame.
    pub(crate) fn follow(&self, end: &mut FollowedEnd, visit: Visit<'_>) -> Result<()> {
        let shared = &self.shared;
        loop {
            let segment = shared.last_segment();
            end.is_sealed = shared.follow_segment(&segment, end, visit)?;
            if !end.is_sealed {
                return Ok(());
            }
            let next = segment.number + 1;
            let numbers = segment_numbers(&*shared.vfs)?;
            if !numbers.contains(&next) {
                return match numbers.last() {
                    Some(last) if *last > next => Err(Error::corrupt(format!("{} is missing", segment_name(next)))),
                    _ => Ok(()),
                };
            }
            let (added, id) = open_segment(&shared.handles, next)?;
            if id != shared.database_id {
                return Err(added.damaged(0, "it belongs to another database"));
            }
            segment.handle.unpin();
            shared.add_segment(added);
            shared.followed_to(LogPosition::new(next, SEGMENT_HEADER_BYTES));
        }
    }

    /// The segments that the last mark omits: whatever was needed of them is in later ones, or in history.
    pub(crate) fn omitted_segments(&self, end: &FollowedEnd) -> Vec<u32> {
        let Some(marked) = &end.marked else { return Vec::new() };
        let numbers = self.shared.list().segments.iter().map(|segment| segment.number).collect::<Vec<_>>();
        numbers.into_iter().filter(|number| !marked.contains(*number)).collect()
    }

    /// Removes a segment from the list. Readers that hold an older list keep its file open.
    ///
    /// # Errors
    /// `Unavailable` if the file can't be opened.
    pub(crate) fn forget_segment(&self, number: u32) -> Result<()> {
        let mut list = self.shared.list.write();
        if let Some(segment) = list.find(number) {
            segment.pin()?;
        }
        let segments = list.segments.iter().filter(|segment| segment.number != number).cloned().collect();
        *list = list.followed_by(segments);
        Ok(())
    }
}

impl Shared {
    /// Reads the frames that were added to a segment; returns whether it is sealed.
    fn follow_segment(&self, segment: &Segment, end: &mut FollowedEnd, visit: Visit<'_>) -> Result<bool> {
        let length = segment.length()?;
        let mut scanner = Scanner::new(segment, length);
        let mut offset = segment.used();
        while let Some(found) = scanner.frame_at(offset)? {
            if found.header.kind == FrameKind::Seal {
                return Ok(true);
            }
            let frame_end = found.end();
            offset = frame_end.offset();
            segment.set_used(offset);
            self.followed_to(frame_end);
            match found.header.kind {
                FrameKind::Mark => {
                    end.marked = Some(ExpectedSegments::decode(segment.number, found.mark_payload())?);
                }
                _ => visit(Frame::from_scan(&found))?,
            }
        }
        match u64::from(offset) < length {
            true => Err(segment.damaged(offset, "a frame's checksum is wrong, though its owner has appended it")),
            false => Ok(false),
        }
    }

    /// Adds a segment after the last one.
    fn add_segment(&self, segment: Segment) {
        let mut list = self.list.write();
        let mut segments = list.segments.clone();
        segments.push(Arc::new(segment));
        *list = list.followed_by(segments);
    }

    /// Everything before `end` can be read, and is durable.
    fn followed_to(&self, end: LogPosition) {
        let mut state = self.state.lock();
        (state.tail.next, state.written, state.durable, state.served) = (end, end, end, end);
        self.written.store(end.to_u64(), Ordering::Release);
        self.durable.store(end.to_u64(), Ordering::Release);
    }
}
