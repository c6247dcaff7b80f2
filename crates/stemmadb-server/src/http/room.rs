//! How much memory do the bodies of all requests take together, and the answers that the replicator reads?
//!
//! A body is bounded by itself; here many at once are. A request takes room for what came of its body and for what is made of it, when it is
//! there and not before, and keeps it until its answer was sent. Who finds none waits a while, and is then told to come back.
//!
//! Requests that hold some and want more could wait for each other. So there is one place beyond the bound: whoever waits may have it instead,
//! and with it as much as its own body needs. Somebody always gets on, a body that is alone never waits, and all of them together take no more
//! than the bound and one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::error::{Failure, Result};

/// So much of each body takes no room: connections are bounded too, and requests of a few bytes do not wait for those of many.
const FREE_BYTES: usize = 16 << 10;
/// Room is taken by so much.
const UNIT_BYTES: usize = 16 << 10;
/// Who waited in vain is told to wait so long before the next try.
const RETRY_AFTER: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// The share of the request that this task answers.
    static OF_REQUEST: Arc<Share>;
}

/// Room for the bodies of all requests.
pub(crate) struct Room {
    units: Arc<Semaphore>,
    unit_count: usize,
    /// The one place beyond the bound.
    beyond: Arc<Semaphore>,
    waiting: AtomicUsize,
    patience: Duration,
}

/// What one request has of it.
pub(crate) struct Share {
    room: Arc<Room>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    byte_count: usize,
    units: Option<OwnedSemaphorePermit>,
    beyond: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// How many units are not taken yet of those that it needs.
    fn owed(&self) -> usize {
        let taken = self.units.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        self.byte_count.saturating_sub(FREE_BYTES).div_ceil(UNIT_BYTES).saturating_sub(taken)
    }

    fn take(&mut self, units: OwnedSemaphorePermit) {
        match &mut self.units {
            Some(taken) => taken.merge(units),
            none => *none = Some(units),
        }
    }
}

impl Room {
    /// Of so many bytes; who finds none waits for as long as `patience`.
    pub(crate) fn new(byte_count: u64, patience: Duration) -> Arc<Self> {
        let unit_count = usize::try_from(byte_count).unwrap_or(usize::MAX).div_ceil(UNIT_BYTES);
        let unit_count = unit_count.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Arc::new(Room {
            units: Arc::new(Semaphore::new(unit_count)),
            unit_count,
            beyond: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            patience,
        })
    }

    /// What a new request has of it: nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { room: self.clone(), held: Mutex::default() })
    }

    /// Whether anybody waits for room.
    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Counts somebody who waits, for as long as they do.
struct Waiting<'r>(&'r Room);

impl<'r> Waiting<'r> {
    fn new(room: &'r Room) -> Self {
        room.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(room)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    /// That of the request which this task answers, if it answers one.
    pub(crate) fn of_request() -> Option<Arc<Share>> {
        OF_REQUEST.try_with(Arc::clone).ok()
    }

    /// Does what a request asks for: work of it that goes on after it was cut holds its share on.
    pub(crate) async fn during<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        OF_REQUEST.scope(self, work).await
    }

    /// Takes room for so many bytes more; waits for it.
    ///
    /// # Errors
    /// 503 if there is none for long.
    pub(crate) async fn grow(&self, byte_count: usize) -> Result<()> {
        let owed = {
            let mut held = self.held.lock();
            held.byte_count = held.byte_count.saturating_add(byte_count);
            self.settle(&mut held)
        };
        if owed == 0 {
            return Ok(());
        }
        let _waiting = Waiting::new(&self.room);
        let units = async {
            match u32::try_from(owed).ok().filter(|_| owed <= self.room.unit_count) {
                Some(owed) => self.room.units.clone().acquire_many_owned(owed).await,
                // More than there ever is.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(units) = units => self.held.lock().take(units),
            Ok(beyond) = self.room.beyond.clone().acquire_owned() => self.held.lock().beyond = Some(beyond),
            () = sleep(self.room.patience) => return Err(Failure::unavailable(
                "The bodies of other requests take all of the memory that there is for them (limits.bodies_bytes): try again.",
                RETRY_AFTER,
            )),
        }
        Ok(())
    }

    /// Takes the units that are owed, if they are free, and gives the place beyond back then. How many are owed that have to be waited for.
    fn settle(&self, held: &mut Held) -> usize {
        let owed = held.owed();
        if owed == 0 {
            return 0;
        }
        let free = u32::try_from(owed).ok().and_then(|owed| self.room.units.clone().try_acquire_many_owned(owed).ok());
        match free {
            Some(units) => {
                held.take(units);
                held.beyond = None;
                0
            }
            None if held.beyond.is_some() => 0,
            None => owed,
        }
    }

    /// Whether somebody waits for what others hold.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.room.is_waited_for()
    }

    /// Whether somebody waits, and this is some of what they wait for.
    pub(crate) fn is_in_the_way(&self) -> bool {
        let held = self.held.lock();
        self.room.is_waited_for() && (held.units.is_some() || held.beyond.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody waits so long here.
    const LONG: Duration = Duration::from_secs(600);
    const MIB: usize = 1 << 20;

    /// Bytes that are held above the bound.
    fn beyond(shares: &[Arc<Share>]) -> usize {
        let held =
            |share: &Arc<Share>| if share.held.lock().beyond.is_some() { share.held.lock().byte_count } else { 0 };
        shares.iter().map(held).sum()
    }

    #[tokio::test]
    async fn a_body_that_is_alone_never_waits() {
        for bound in [0, MIB as u64] {
            let share = Room::new(bound, Duration::ZERO).share();
            for _ in 0..64 {
                share.grow(MIB).await.expect("who waits at all is refused here");
            }
        }
    }

    #[tokio::test]
    async fn who_finds_no_room_waits_and_is_then_told_to_come_back() {
        let room = Room::new(MIB as u64, Duration::from_millis(20));
        let (first, second, third) = (room.share(), room.share(), room.share());
        first.grow(MIB).await.unwrap();
        second.grow(MIB).await.unwrap();
        third.grow(FREE_BYTES).await.expect("little is free");
        let refused = third.grow(MIB).await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        assert_eq!(refused.header().map(|(_, seconds)| seconds.as_str()), Some("5"));
        // The place beyond is free again: the next one has it.
        drop(second);
        third.grow(MIB).await.unwrap();
        assert!(!third.is_waited_for());
    }

    #[tokio::test]
    async fn who_has_the_place_beyond_gives_it_back_once_there_is_room() {
        let room = Room::new(MIB as u64, LONG);
        let (first, second, third) = (room.share(), room.share(), room.share());
        first.grow(MIB).await.unwrap();
        second.grow(MIB).await.unwrap();
        assert!(second.held.lock().beyond.is_some());
        drop(first);
        second.grow(1).await.unwrap();
        assert!(second.held.lock().beyond.is_none());
        third.grow(MIB).await.expect("it is free for others");
    }

    /// Each has a part of its body and waits for the rest, and none of them ever gives anything back before it has all.
    #[tokio::test]
    async fn many_that_hold_a_part_each_all_get_on_and_together_stay_within_the_bound() {
        let room = Room::new(4 * MIB as u64, LONG);
        let shares: Vec<_> = (0..64).map(|_| room.share()).collect();
        let bodies: Vec<_> = shares
            .iter()
            .map(|share| {
                let (share, all) = (share.clone(), shares.clone());
                tokio::spawn(async move {
                    for _ in 0..8 * MIB / (64 << 10) {
                        share.grow(64 << 10).await.unwrap();
                        assert!(beyond(&all) <= 8 * MIB, "more than one is beyond the bound");
                        tokio::task::yield_now().await;
                    }
                    *share.held.lock() = Held::default();
                })
            })
            .collect();
        for body in bodies {
            body.await.unwrap();
        }
        assert_eq!(room.units.available_permits(), room.unit_count);
    }

    #[tokio::test]
    async fn what_goes_on_after_a_request_was_cut_holds_its_share() {
        let room = Room::new(MIB as u64, LONG);
        let share = room.share();
        share.grow(MIB).await.unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (tell, told) = tokio::sync::oneshot::channel();
        let work = share.clone().during(crate::http::blocking(move || {
            tell.send(()).ok();
            ended.recv().ok();
            Ok(())
        }));
        let request = tokio::spawn(work);
        told.await.unwrap();
        request.abort();
        drop(share);
        assert!(request.await.is_err());
        assert!(room.units.available_permits() < room.unit_count);
        drop(end);
        // It is free when that work is over.
        drop(room.units.acquire_many(room.unit_count as u32).await.unwrap());
    }
}
