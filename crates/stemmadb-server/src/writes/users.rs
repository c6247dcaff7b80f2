//! Checks documents of the database `_users` before they are written, and hashes their passwords.

use stemmadb::{Object, Value};

use crate::auth::{Credential, USER_ID_PREFIX, User};
use crate::directory::Served;
use crate::documents::Incoming;
use crate::error::{Failure, Result};

/// Makes a user's document ready to be written: it is one, and the password in it is hashed. Takes some tens of milliseconds if there is
/// one.
///
/// # Errors
/// 403, saying what is wrong with it.
pub(super) fn prepare_user(served: &Served, id: &str, document: &mut Incoming, user: &User) -> Result<()> {
    if document.deleted || id.starts_with("_design/") || id.starts_with("_local/") {
        return Ok(());
    }
    let refuse = |reason: &'static str| Err(Failure::forbidden(reason));
    let Some(body) = document.body.as_object_mut() else { return refuse("A user's document is an object.") };
    let text = |body: &Object, name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    if text(body, "type").as_deref() != Some("user") {
        return refuse("doc.type must be user");
    }
    let Some(name) = text(body, "name").filter(|name| !name.is_empty()) else { return refuse("doc.name is required") };
    if id.strip_prefix(USER_ID_PREFIX) != Some(&name) {
        return refuse("Doc ID must be of the form org.couchdb.user:name");
    }
    // Basic credentials and cookies end a name at a colon.
    if name.contains(':') {
        return refuse("Character `:` is not allowed in usernames.");
    }
    let given = body.get("roles").and_then(Value::as_array).map(<[Value]>::to_vec);
    let Some(given) = given else { return refuse("doc.roles must exist and be an array") };
    if !given.iter().all(|role| role.as_str().is_some()) {
        return refuse("doc.roles can only contain strings");
    }
    let is_admin = served.security().is_admin(user);
    if given.iter().filter_map(Value::as_str).any(|role| role.starts_with('_')) {
        return refuse("No system roles (starting with underscore) in users db.");
    }
    let before = served.database().get(id)?.map(|document| document.value()).transpose()?;
    if !is_admin {
        let known = before.as_ref().and_then(|before| before.get("roles")?.as_array().map(<[Value]>::to_vec));
        if known.unwrap_or_default() != given {
            return refuse("Only _admin may edit roles");
        }
    }
    match body.remove("password") {
        Some(Value::String(password)) => Credential::new(&password)?.put(body),
        Some(Value::Null) | None => {}
        Some(_) => return refuse("Password must be a string."),
    }
    let has_scheme = body.contains("password_scheme");
    if has_scheme && Credential::of_user(&Value::Object(body.clone())).is_none() {
        return refuse("The password is kept by a scheme that is not accepted here.");
    }
    Ok(())
}
