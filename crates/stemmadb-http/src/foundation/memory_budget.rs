//! A memory budget that the bodies of all requests share, together with the responses that the replicator reads.
//!
//! Each body is bounded by itself; the budget bounds all of them together. A request reserves memory for the part of
//! its body that arrived and for what is parsed from it, not earlier, and keeps the reservation until its response was
//! sent. A request that finds no memory waits; after a timeout it fails with 503 and `Retry-After`.
//!
//! Requests that hold memory and need more could wait for each other for ever. One request at a time may therefore
//! exceed the budget (the overcommit permit), by as much as its own body needs. Some request always makes progress, a
//! body that is alone never waits, and all bodies together take at most the budget and one body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::error::{Failure, Result};

/// The first bytes of each body need no reservation: connections are bounded too, and small requests do not wait for
/// large ones.
const FREE_BYTES: usize = 16 << 10;
/// The unit in which memory is reserved.
const UNIT_BYTES: usize = 16 << 10;
/// The `Retry-After` of a request that timed out.
const RETRY_AFTER: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// The reservation of the request that this task answers.
    static CURRENT_REQUEST: Arc<MemoryReservation>;
}

/// The memory budget of the bodies of all requests.
pub struct MemoryBudget {
    units: Arc<Semaphore>,
    unit_count: usize,
    /// The one permit to exceed the budget.
    overcommit: Arc<Semaphore>,
    /// How many requests wait for memory.
    waiting: AtomicUsize,
    wait_max: Duration,
}

/// The memory that one request holds of the budget.
pub struct MemoryReservation {
    budget: Arc<MemoryBudget>,
    held: Mutex<HeldMemory>,
}

#[derive(Default)]
struct HeldMemory {
    byte_count: usize,
    units: Option<OwnedSemaphorePermit>,
    overcommit: Option<OwnedSemaphorePermit>,
}

impl HeldMemory {
    /// How many units it needs and has not reserved yet.
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

impl MemoryBudget {
    /// A budget of `byte_count` bytes. Requests wait for memory for at most `wait_max`.
    pub fn new(byte_count: u64, wait_max: Duration) -> Arc<Self> {
        let unit_count = usize::try_from(byte_count).unwrap_or(usize::MAX).div_ceil(UNIT_BYTES);
        let unit_count = unit_count.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Arc::new(MemoryBudget {
            units: Arc::new(Semaphore::new(unit_count)),
            unit_count,
            overcommit: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            wait_max,
        })
    }

    /// An empty reservation, for a new request.
    pub fn reservation(self: &Arc<Self>) -> Arc<MemoryReservation> {
        Arc::new(MemoryReservation { budget: self.clone(), held: Mutex::default() })
    }

    /// Whether no request holds memory that it had to reserve.
    pub fn is_unused(&self) -> bool {
        self.units.available_permits() == self.unit_count
    }

    /// Whether a request waits for memory.
    fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// Counts a waiting request until it is dropped.
struct WaitingGuard<'r>(&'r MemoryBudget);

impl<'r> WaitingGuard<'r> {
    fn new(budget: &'r MemoryBudget) -> Self {
        budget.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(budget)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemoryReservation {
    /// The reservation of the request that this task answers, if it answers one.
    pub fn of_current_request() -> Option<Arc<MemoryReservation>> {
        CURRENT_REQUEST.try_with(Arc::clone).ok()
    }

    /// Runs the handler of a request. Blocking work that outlives a cancelled request keeps the reservation until it
    /// ends.
    pub async fn scope<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT_REQUEST.scope(self, work).await
    }

    /// Reserves `byte_count` more bytes; waits for them.
    ///
    /// # Errors
    /// 503 if no memory became free in time.
    pub async fn grow(&self, byte_count: usize) -> Result<()> {
        let owed = {
            let mut held = self.held.lock();
            held.byte_count = held.byte_count.saturating_add(byte_count);
            self.settle(&mut held)
        };
        if owed == 0 {
            return Ok(());
        }
        let _waiting = WaitingGuard::new(&self.budget);
        let units = async {
            match u32::try_from(owed).ok().filter(|_| owed <= self.budget.unit_count) {
                Some(owed) => self.budget.units.clone().acquire_many_owned(owed).await,
                // More than the whole budget.
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Ok(units) = units => self.held.lock().take(units),
            Ok(overcommit) = self.budget.overcommit.clone().acquire_owned() => {
                self.held.lock().overcommit = Some(overcommit);
            }
            () = sleep(self.budget.wait_max) => return Err(Failure::unavailable(
                "The bodies of other requests take all of the memory that there is for them \
                 (limits.bodies_bytes): try again.",
                RETRY_AFTER,
            )),
        }
        Ok(())
    }

    /// Reserves the missing units if they are free, and then releases the overcommit permit. Returns how many units
    /// must be waited for.
    fn settle(&self, held: &mut HeldMemory) -> usize {
        let owed = held.owed();
        if owed == 0 {
            return 0;
        }
        let free =
            u32::try_from(owed).ok().and_then(|owed| self.budget.units.clone().try_acquire_many_owned(owed).ok());
        match free {
            Some(units) => {
                held.take(units);
                held.overcommit = None;
                0
            }
            None if held.overcommit.is_some() => 0,
            None => owed,
        }
    }

    /// Whether any request waits for memory.
    pub fn has_waiters(&self) -> bool {
        self.budget.has_waiters()
    }

    /// Whether a request waits for memory while this reservation holds some.
    pub fn blocks_others(&self) -> bool {
        let held = self.held.lock();
        self.budget.has_waiters() && (held.units.is_some() || held.overcommit.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any wait of these tests.
    const LONG: Duration = Duration::from_secs(600);
    const MIB: usize = 1 << 20;

    /// Bytes held above the budget.
    fn overcommit(reservations: &[Arc<MemoryReservation>]) -> usize {
        let held = |reservation: &Arc<MemoryReservation>| {
            if reservation.held.lock().overcommit.is_some() { reservation.held.lock().byte_count } else { 0 }
        };
        reservations.iter().map(held).sum()
    }

    #[tokio::test]
    async fn only_body_never_waits() {
        for bound in [0, MIB as u64] {
            let reservation = MemoryBudget::new(bound, Duration::ZERO).reservation();
            for _ in 0..64 {
                reservation.grow(MIB).await.expect("a wait would time out at once");
            }
        }
    }

    #[tokio::test]
    async fn request_without_memory_waits_and_then_fails_with_retry_after() {
        let budget = MemoryBudget::new(MIB as u64, Duration::from_millis(20));
        let (first, second, third) = (budget.reservation(), budget.reservation(), budget.reservation());
        first.grow(MIB).await.unwrap();
        second.grow(MIB).await.unwrap();
        third.grow(FREE_BYTES).await.expect("little is free");
        let refused = third.grow(MIB).await.unwrap_err();
        assert_eq!(refused.status().as_u16(), 503);
        assert_eq!(refused.header().map(|(_, seconds)| seconds.as_str()), Some("5"));
        // The overcommit permit is free again, and the next request gets it.
        drop(second);
        third.grow(MIB).await.unwrap();
        assert!(!third.has_waiters());
    }

    #[tokio::test]
    async fn overcommit_permit_is_released_once_memory_is_free() {
        let budget = MemoryBudget::new(MIB as u64, LONG);
        let (first, second, third) = (budget.reservation(), budget.reservation(), budget.reservation());
        first.grow(MIB).await.unwrap();
        second.grow(MIB).await.unwrap();
        assert!(second.held.lock().overcommit.is_some());
        drop(first);
        second.grow(1).await.unwrap();
        assert!(second.held.lock().overcommit.is_none());
        third.grow(MIB).await.expect("it is free for others");
    }

    /// Each request holds memory for a part of its body and releases it only once the body is complete.
    #[tokio::test]
    async fn many_partial_reservations_all_progress_within_the_budget() {
        let budget = MemoryBudget::new(4 * MIB as u64, LONG);
        let reservations: Vec<_> = (0..64).map(|_| budget.reservation()).collect();
        let bodies: Vec<_> = reservations
            .iter()
            .map(|reservation| {
                let (reservation, all) = (reservation.clone(), reservations.clone());
                tokio::spawn(async move {
                    for _ in 0..8 * MIB / (64 << 10) {
                        reservation.grow(64 << 10).await.unwrap();
                        assert!(overcommit(&all) <= 8 * MIB, "more than one request exceeds the budget");
                        tokio::task::yield_now().await;
                    }
                    *reservation.held.lock() = HeldMemory::default();
                })
            })
            .collect();
        for body in bodies {
            body.await.unwrap();
        }
        assert_eq!(budget.units.available_permits(), budget.unit_count);
    }
}
