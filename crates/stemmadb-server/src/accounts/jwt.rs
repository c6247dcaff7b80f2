//! JSON Web Tokens: accepted if signed by a configured key with that key's algorithm, and not expired.

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use stemmadb::Clock;

use crate::auth::User;
use crate::config::{JwtAlgorithm, JwtKey};
use crate::error::{Failure, Result};

/// The minimum length of an HMAC secret; a shorter one can be guessed.
const SECRET_BYTES_MIN: usize = 32;

/// The configured keys.
pub(super) struct JwtKeys {
    keys: Vec<JwtVerificationKey>,
    clock: Clock,
}

struct JwtVerificationKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// The time of expiry, in seconds since 1970.
    exp: f64,
    /// The time before which the token is not valid yet.
    nbf: Option<f64>,
    #[serde(rename = "_couchdb.roles", default)]
    roles: Vec<String>,
}

impl JwtKeys {
    /// Parses the keys of a configuration.
    ///
    /// # Errors
    /// 400 if a key is malformed or too short.
    pub(super) fn new(keys: &[JwtKey], clock: Clock) -> Result<Self> {
        let invalid = |key: &JwtKey, why: &str| {
            Failure::bad_request(format!("the JWT key {} {why}", key.id.as_deref().unwrap_or("without id")))
        };
        let read = |key: &JwtKey| {
            use JwtAlgorithm::{Es256, Es384, Hs256, Hs384, Hs512, Rs256, Rs384, Rs512};
            let decoding = match key.algorithm {
                Hs256 | Hs384 | Hs512 if key.key.len() < SECRET_BYTES_MIN => {
                    return Err(invalid(key, "is too short: at least 32 bytes"));
                }
                Hs256 | Hs384 | Hs512 => Ok(DecodingKey::from_secret(&key.key)),
                Rs256 | Rs384 | Rs512 => DecodingKey::from_rsa_pem(&key.key),
                Es256 | Es384 => DecodingKey::from_ec_pem(&key.key),
            };
            let decoding = decoding.map_err(|error| invalid(key, &format!("is no key: {error}")))?;
            Ok(JwtVerificationKey { id: key.id.clone(), algorithm: algorithm(key.algorithm), key: decoding })
        };
        Ok(JwtKeys { keys: keys.iter().map(read).collect::<Result<_>>()?, clock })
    }

    /// The user of a token. `None` if the token is invalid.
    pub(super) fn user(&self, token: &str) -> Option<User> {
        let header = decode_header(token).ok()?;
        let key = self.keys.iter().find(|key| key.id == header.kid && key.algorithm == header.alg)?;
        let mut validation = Validation::new(key.algorithm);
        // Expiry and `nbf` are checked below, against the server's clock.
        validation.validate_exp = false;
        validation.validate_aud = false;
        let claims = decode::<Claims>(token, &key.key, &validation).ok()?.claims;
        let now = self.clock.now_ms() as f64 / 1000.0;
        let is_current = now < claims.exp && claims.nbf.is_none_or(|nbf| nbf <= now);
        let has_subject = !claims.sub.is_empty();
        (is_current && has_subject).then_some(User { name: Some(claims.sub), roles: claims.roles, how: Some("jwt") })
    }
}

fn algorithm(algorithm: JwtAlgorithm) -> Algorithm {
    match algorithm {
        JwtAlgorithm::Hs256 => Algorithm::HS256,
        JwtAlgorithm::Hs384 => Algorithm::HS384,
        JwtAlgorithm::Hs512 => Algorithm::HS512,
        JwtAlgorithm::Rs256 => Algorithm::RS256,
        JwtAlgorithm::Rs384 => Algorithm::RS384,
        JwtAlgorithm::Rs512 => Algorithm::RS512,
        JwtAlgorithm::Es256 => Algorithm::ES256,
        JwtAlgorithm::Es384 => Algorithm::ES384,
    }
}
