//! Validation of user documents in the database `_users`, and hashing of their passwords.

use stemmadb::{Object, Value};

use crate::auth::{Credential, USER_ID_PREFIX, User};
use crate::directory::ServedDatabase;
use crate::documents::IncomingDocument;
use crate::error::{Failure, Result};

/// Validates a user document and replaces its password by a hash. Hashing takes some tens of milliseconds.
///
/// # Errors
/// 403 with the reason.
pub(super) fn prepare_user(
    served: &ServedDatabase,
    id: &str,
    document: &mut IncomingDocument,
    user: &User,
) -> Result<()> {
    if document.deleted || id.starts_with("_design/") || id.starts_with("_local/") {
        return Ok(());
    }
    let refuse = |reason: &'static str| Err(Failure::forbidden(reason));
    let Some(body) = document.body.as_object_mut() else { return refuse("A user document must be an object.") };
    let text = |body: &Object, name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    if text(body, "type").as_deref() != Some("user") {
        return refuse("doc.type must be user");
    }
    let Some(name) = text(body, "name").filter(|name| !name.is_empty()) else { return refuse("doc.name is required") };
    if id.strip_prefix(USER_ID_PREFIX) != Some(&name) {
        return refuse("Doc ID must be of the form org.couchdb.user:name");
    }
    // Basic credentials and session cookies use a colon as the separator after the name.
    if name.contains(':') {
        return refuse("Character `:` is not allowed in usernames.");
    }
    let roles = body.get("roles").and_then(Value::as_array).map(<[Value]>::to_vec);
    let Some(roles) = roles else { return refuse("doc.roles must exist and be an array") };
    if !roles.iter().all(|role| role.as_str().is_some()) {
        return refuse("doc.roles can only contain strings");
    }
    let is_admin = served.security().is_admin(user);
    if roles.iter().filter_map(Value::as_str).any(|role| role.starts_with('_')) {
        return refuse("No system roles (starting with underscore) in users db.");
    }
    let before = served.database().get(id)?.map(|document| document.value()).transpose()?;
    if !is_admin {
        let current = before.as_ref().and_then(|before| before.get("roles")?.as_array().map(<[Value]>::to_vec));
        if current.unwrap_or_default() != roles {
            return refuse("Only _admin may edit roles");
        }
    }
    match body.remove("password") {
        Some(Value::String(password)) => Credential::new(&password)?.put(body),
        Some(Value::Null) | None => {}
        Some(_) => return refuse("Password must be a string."),
    }
    let has_scheme = body.contains("password_scheme");
    if has_scheme && Credential::from_user(&Value::Object(body.clone())).is_none() {
        return refuse("The password is hashed with an unsupported scheme.");
    }
    Ok(())
}
