//! Requests to a shard from the server of its virtual database, in the name of a user of that.
//!
//! The other server authenticates as an administrator, and names the user in a header. It has checked the user's
//! rights; what the user may read is in the header, and what writes obey was stored in the shard before.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use stemmadb::{Object, Value};

use super::OUTDATED;
use crate::auth::{Restriction, User};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};

/// The header with the user.
pub(crate) const ON_BEHALF: HeaderName = HeaderName::from_static("x-stemma-on-behalf");

/// The longest header: a head has at most 64 KiB by default.
const HEADER_BYTES_MAX: usize = 32 << 10;

/// A request in the name of a user of a virtual database.
pub(crate) struct DelegatedRequest {
    /// The version of what the shard obeys.
    version: String,
    pub(crate) user: User,
    pub(crate) restriction: Option<Restriction>,
}

impl DelegatedRequest {
    /// Parses the header of a request, if it has one.
    ///
    /// # Errors
    /// 403 if the caller is no administrator of the server; 400 if the header is malformed.
    pub(crate) fn of(headers: &HeaderMap, caller: &User) -> Result<Option<Self>> {
        headers.get(&ON_BEHALF).map(|header| Self::parse(header.as_bytes(), caller)).transpose()
    }

    /// Parses the value of the header.
    ///
    /// # Errors
    /// As [`DelegatedRequest::of`].
    pub(crate) fn parse(header: &[u8], caller: &User) -> Result<Self> {
        if !caller.is_server_admin() {
            return Err(Failure::forbidden(format!("Only administrators of the server may send `{ON_BEHALF}`.")));
        }
        let invalid = || Failure::bad_request(format!("`{ON_BEHALF}` is malformed."));
        let decoded = BASE64_STANDARD.decode(header).map_err(|_| invalid())?;
        let value = Value::parse(&decoded).map_err(|_| invalid())?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let roles = value.get("roles").and_then(Value::as_array).ok_or_else(invalid)?;
        let roles = roles.iter().filter_map(|role| role.as_str().map(str::to_owned)).collect();
        let user = User { name: text("name"), roles, how: caller.how };
        let restriction = value.get("readable").map(|selector| Restriction::to_selector(selector, &user));
        Ok(DelegatedRequest {
            version: text("version").ok_or_else(invalid)?,
            restriction: restriction.transpose()?,
            user,
        })
    }

    /// The header of a request to a shard.
    ///
    /// # Errors
    /// 501 if the access rule is too long for a header.
    pub(crate) fn header(user: &User, restriction: Option<&Restriction>, version: &str) -> Result<HeaderValue> {
        let encoded = Self::encode(user, restriction, version)?;
        let too_long = || {
            Failure::not_implemented(
                "The access rule and the roles of the user are too long to be sent to the server of a shard.",
            )
        };
        let header = HeaderValue::from_str(&encoded).ok().filter(|_| encoded.len() <= HEADER_BYTES_MAX);
        header.ok_or_else(too_long)
    }

    /// The value of the header, of any length.
    ///
    /// # Errors
    /// 500 if the access rule can't be printed.
    pub(crate) fn encode(user: &User, restriction: Option<&Restriction>, version: &str) -> Result<String> {
        let mut sent = Object::new();
        sent.insert("version", version);
        sent.insert("name", user.name.as_deref().map_or(Value::Null, Value::from));
        sent.insert("roles", user.roles.iter().map(|role| Value::from(role.as_str())).collect::<Vec<_>>());
        if let Some(restriction) = restriction {
            sent.insert("readable", restriction.selector().to_value()?);
        }
        Ok(BASE64_STANDARD.encode(Value::Object(sent).to_json()))
    }

    /// Checks that the database is the shard that the request is for.
    ///
    /// # Errors
    /// 424 if it is not, or obeys something else.
    pub(crate) fn check(&self, served: &ServedDatabase) -> Result<()> {
        match served.has_whole(&self.version) {
            true => Ok(()),
            false => {
                Err(Failure::new(OUTDATED, "outdated_shard", "the shard obeys another version: repeat the request"))
            }
        }
    }
}
