//! Authorization: whether a user may use a route.

use std::sync::Arc;

use super::roles::{Grant, Roles};
use super::users;
use crate::auth::{Access, METRICS_ROLE, Restriction, Route, Security, USERS_DATABASE, User, check_restricted_route};
use crate::directory::Directory;
use crate::error::{Failure, Result};
use crate::http::Parameters;

/// Checks that `user` may use a route. `security` is that of the route's database, if it has one.
///
/// # Errors
/// 401 if an anonymous request is not allowed, 403 if the user is not.
fn check_access(user: &User, access: Access, security: Option<&Security>) -> Result<()> {
    if user.is_server_admin() {
        return Ok(());
    }
    let is_allowed = match access {
        Access::Anonymous => true,
        Access::User => user.name.is_some(),
        Access::Member => security.is_some_and(|security| security.is_member(user)),
        Access::DatabaseAdmin => security.is_some_and(|security| security.is_admin(user)),
        Access::Metrics => user.roles.iter().any(|role| role == METRICS_ROLE),
        Access::ServerAdmin => false,
    };
    match (is_allowed, &user.name, access) {
        (true, _, _) => Ok(()),
        (false, None, Access::Metrics | Access::ServerAdmin) => {
            Err(Failure::unauthorized("You are not a server admin."))
        }
        (false, None, _) => Err(Failure::unauthorized("You are not authorized to access this db.")),
        (false, Some(_), Access::Metrics | Access::ServerAdmin) => {
            Err(Failure::forbidden("You are not a server admin."))
        }
        (false, Some(_), _) => Err(Failure::forbidden("You are not allowed to access this db.")),
    }
}

/// Checks that `user` may use a route with the parameters of its path. Returns the restriction to some documents of the
/// database that the route has to apply, if the user has one.
///
/// # Errors
/// As [`check_access`]; 404 if there is no such database; 403 if the route can't apply the restriction.
pub(crate) async fn authorize(
    directory: &Arc<Directory>,
    roles: &Roles,
    route: &Route,
    parameters: &Parameters,
    user: &User,
) -> Result<Option<Restriction>> {
    let database = parameters.get("db");
    let security = match (route.access, database) {
        (Access::Member | Access::DatabaseAdmin, Some(name)) => Some(directory.security(name).await?),
        _ => None,
    };
    let is_of_users = database == Some(USERS_DATABASE) && route.access == Access::Member;
    if is_of_users && !security.as_deref().is_some_and(|security| security.is_admin(user)) {
        users::check_own_document(user, route, parameters.get("doc"))?;
        return Ok(None);
    }
    let grant = match (&security, database, route.access) {
        (Some(security), Some(name), Access::Member) if !security.is_member(user) => {
            roles.grant(user, name, route, parameters)?
        }
        _ => None,
    };
    if grant.is_none() {
        check_access(user, route.access, security.as_deref())?;
    }
    let by_rule = match &security {
        Some(security) => security.restriction(user)?,
        None => None,
    };
    let by_role = match grant {
        Some(Grant::Documents(restriction)) => Some(restriction),
        _ => None,
    };
    let restriction = match (by_rule, by_role) {
        (Some(by_rule), Some(by_role)) => Some(by_rule.and(by_role)),
        (by_rule, by_role) => by_rule.or(by_role),
    };
    if restriction.is_some() {
        check_restricted_route(route)?;
    }
    Ok(restriction)
}
