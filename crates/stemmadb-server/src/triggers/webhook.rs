//! Webhooks: a request for each change, signed as [Standard Webhooks](https://www.standardwebhooks.com) specifies.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use hyper::{Request, Uri};
use serde_json::Value as Json;
use sha2::Sha256;
use tokio::time::timeout;

use super::TriggerContext;
use crate::error::{Failure, Result};
use crate::http::Body;

/// The prefix of a secret in base64.
const PREFIX: &str = "whsec_";
/// The fewest bytes of a secret.
const SECRET_BYTES_MIN: usize = 16;

/// What requests are signed with.
pub(super) struct Secret(Vec<u8>);

impl Secret {
    /// Parses a secret: `whsec_` and base64, or any other text.
    ///
    /// # Errors
    /// 400 if it is too short, or not base64.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let bytes = match text.strip_prefix(PREFIX) {
            Some(encoded) => BASE64_STANDARD
                .decode(encoded)
                .map_err(|_| Failure::bad_request(format!("what follows `{PREFIX}` in `secret` is not base64")))?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.len() < SECRET_BYTES_MIN {
            let reason = format!("a webhook needs a `secret` of at least {SECRET_BYTES_MIN} bytes");
            return Err(Failure::bad_request(reason));
        }
        Ok(Secret(bytes))
    }

    /// The value of `webhook-signature`.
    fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> Result<String> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).map_err(|error| Failure::internal(error.to_string()))?;
        let signature = mac.chain_update(format!("{id}.{timestamp}.")).chain_update(body).finalize().into_bytes();
        Ok(format!("v1,{}", BASE64_STANDARD.encode(signature)))
    }
}

/// A webhook.
pub(super) struct Webhook {
    pub(super) uri: Uri,
    pub(super) secret: Secret,
}

impl Webhook {
    /// Sends one event; `id` is the same in all attempts.
    ///
    /// # Errors
    /// Why it was not accepted: 502 or 504, or 403 if the host is not allowed any more.
    pub(super) async fn send(&self, context: &TriggerContext, id: &str, event: &Json) -> Result<()> {
        let host = self.uri.host().unwrap_or_default();
        context.outbound.check(host)?;
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let body = event.to_string().into_bytes();
        let request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("Stemma/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", self.secret.sign(id, timestamp, &body)?)
            .body(Body::Full(Some(body.into())))
            .map_err(|error| Failure::internal(error.to_string()))?;
        let bad = |reason: String| Failure::new(hyper::StatusCode::BAD_GATEWAY, "bad_gateway", reason);
        let limit = context.limits.timeout;
        let answered = timeout(limit, context.outbound.client.request(request)).await;
        let answer = answered.map_err(|_| bad(format!("{host} did not answer within {} s", limit.as_secs())))?;
        let answer = answer.map_err(|error| bad(format!("{host}: {}", described(&error))))?;
        // Redirects are not followed: they could lead to hosts that are not allowed.
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(bad(format!("{host} answered {}", answer.status()))),
        }
    }
}

/// An error with its causes.
fn described(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_is_that_of_the_specification() {
        // The example of the specification's libraries.
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, br#"{"test": 2432232314}"#).unwrap();
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert!(Secret::parse("whsec_!").is_err() && Secret::parse("short").is_err() && Secret::parse("").is_err());
    }
}
