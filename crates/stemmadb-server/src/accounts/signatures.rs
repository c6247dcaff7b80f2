//! Signatures of requests that were accepted: none is accepted twice, and none that is too old.

use std::collections::{HashSet, VecDeque};

use hyper::StatusCode;
use parking_lot::Mutex;
use stemmadb_http::signature::SentSignature;

use crate::error::{Failure, Result};

/// How much the clocks of two servers may differ, and how long a request may take to arrive, in seconds.
const AGE_SECONDS_MAX: i64 = 300;
/// The most signatures that are remembered, about 50 MB.
const COUNT_MAX: usize = 1_000_000;

/// The part of a signature that no other one has: it depends on the whole signed text and on the key.
type Commitment = [u8; 32];

/// The signatures that were accepted and are not too old yet.
#[derive(Default)]
pub(super) struct AcceptedSignatures(Mutex<Accepted>);

#[derive(Default)]
struct Accepted {
    known: HashSet<Commitment>,
    /// When each is too old, in seconds since 1970, in the order in which they were accepted.
    ends: VecDeque<(i64, Commitment)>,
}

impl AcceptedSignatures {
    /// Accepts a genuine signature at the time `now`, in seconds since 1970.
    ///
    /// # Errors
    /// 401 if it is too old, of the future, or was accepted before; 503 if too many are remembered.
    pub(super) fn accept(&self, sent: &SentSignature, now: u64) -> Result<()> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let age = now.saturating_sub(sent.created);
        if age.abs() > AGE_SECONDS_MAX {
            return Err(Failure::unauthorized(format!(
                "The signature was made {age} seconds before now: at most {AGE_SECONDS_MAX} are allowed. Compare the \
                 clocks of both servers."
            )));
        }
        if sent.expires.is_some_and(|end| end <= now) {
            return Err(Failure::unauthorized("The signature has expired."));
        }
        let Some(commitment) = sent.signature.first_chunk().copied() else {
            return Err(Failure::unauthorized("The signature is too short."));
        };
        let mut accepted = self.0.lock();
        while let Some((_, old)) = accepted.ends.pop_front_if(|(end, _)| *end < now) {
            accepted.known.remove(&old);
        }
        if accepted.known.contains(&commitment) {
            return Err(Failure::unauthorized("The signature was used before: each request needs a new `nonce`."));
        }
        if accepted.known.len() >= COUNT_MAX {
            let reason = "Too many signed requests in the last minutes.";
            return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason));
        }
        accepted.known.insert(commitment);
        accepted.ends.push_back((sent.created.saturating_add(AGE_SECONDS_MAX), commitment));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u8, created: i64) -> SentSignature {
        SentSignature::for_tests(vec![number; 64], created)
    }

    #[test]
    fn signature_is_accepted_once_and_only_while_it_is_new() {
        let accepted = AcceptedSignatures::default();
        let accept = |number, created, now| {
            accepted.accept(&sent(number, created), now).map_err(|failure| failure.status().as_u16())
        };
        assert_eq!(accept(1, 1_000, 1_000), Ok(()));
        assert_eq!(accept(1, 1_000, 1_001), Err(401));
        assert_eq!(accept(2, 1_000, 1_000 + 300), Ok(()), "a clock that is behind");
        assert_eq!(accept(3, 1_000, 1_000 + 301), Err(401), "too old");
        assert_eq!(accept(4, 1_301, 1_000), Err(401), "of the future");
        assert_eq!(accept(5, 1_300, 1_000), Ok(()));
        assert_eq!(accepted.0.lock().known.len(), 3);
        assert_eq!(accept(6, 1_700, 1_601), Ok(()));
        assert_eq!(accepted.0.lock().known.len(), 1, "those that are too old are forgotten");
    }
}
