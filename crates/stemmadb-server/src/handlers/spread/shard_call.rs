//! A request to one shard, on this server or on another one.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use stemmadb::Value;
use stemmadb_http::url::encode_segment;

use crate::app::{Call, Handler};
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::{BodyTimeout, HttpResponse, JsonPurpose, Parameters, Query, read_all, read_json_within};
use crate::virtual_databases::{OpenVirtual, RemoteShard, Shard};

/// The largest answer of a shard that is read as a whole.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// What is asked of shards: a route of databases, and its handler.
pub(super) struct ShardCall<'a> {
    call: &'a Call,
    handler: Handler,
    /// The methods of a request without a body, and of one with a body.
    methods: (Method, Method),
    /// The path after the name of the database.
    rest: Cow<'static, str>,
    /// The document of the path, if it is another one than the request's.
    parameters: Option<Parameters>,
}

impl<'a> ShardCall<'a> {
    /// The request's own route, which is a `POST`.
    pub(super) fn same_route(call: &'a Call, handler: Handler) -> Self {
        let rest = call.route.path.strip_prefix("/{db}").unwrap_or_default();
        ShardCall { call, handler, methods: (Method::POST, Method::POST), rest: rest.into(), parameters: None }
    }

    /// The request's own route, which is a `PUT`.
    pub(super) fn setting(call: &'a Call, handler: Handler) -> Self {
        ShardCall { methods: (Method::GET, Method::PUT), ..ShardCall::same_route(call, handler) }
    }

    /// A route that is read.
    pub(super) fn get(call: &'a Call, handler: Handler, rest: &'static str) -> Self {
        ShardCall { call, handler, methods: (Method::GET, Method::POST), rest: rest.into(), parameters: None }
    }

    /// A route at a path after the name of the database, with the request's parameters.
    pub(super) fn at_path(call: &'a Call, handler: Handler, rest: String) -> Self {
        ShardCall { call, handler, methods: (Method::GET, Method::POST), rest: rest.into(), parameters: None }
    }

    /// A document, which is read, or written with a body. `rest` is its path.
    ///
    /// # Errors
    /// 500 if the request names no database.
    pub(super) fn of_document(call: &'a Call, handler: Handler, id: &str, rest: String) -> Result<Self> {
        let mut parameters = Parameters::default();
        parameters.push("db", call.parameter("db")?.to_owned());
        parameters.push("doc", id.to_owned());
        let methods = (Method::GET, Method::PUT);
        Ok(ShardCall { call, handler, methods, rest: rest.into(), parameters: Some(parameters) })
    }

    /// The request that is answered.
    pub(super) fn call(&self) -> &'a Call {
        self.call
    }

    /// Asks a shard with these parameters and this body; returns the status and the answer.
    ///
    /// # Errors
    /// The error that the shard answers with; 503 if its server does not answer.
    pub(super) async fn ask(&self, shard: &Shard, query: &Query, body: Option<&Value>) -> Result<(StatusCode, Value)> {
        let query = &*self.at_state(shard, query);
        let body = body.map(|body| Bytes::from(body.to_json()));
        let (status, answer) = match shard {
            Shard::Here(served) => self.ask_here(served, query, body).await?,
            Shard::There(remote) => {
                let rest = format!("{}{}", self.rest, query_text(query));
                let headers = on_behalf(self.call, &self.call.entered()?.open, remote).await?;
                remote.ask_with(headers, self.method(body.is_some()), &rest, body, &self.call.reservation).await?
            }
        };
        let answer = read_json_within(&answer, JsonPurpose::Documents, &self.call.reservation).await?;
        Ok((status, answer))
    }

    /// Asks several shards at the same time; returns the answers in their order.
    ///
    /// # Errors
    /// The first error.
    pub(super) async fn ask_all(
        &self,
        asked: impl IntoIterator<Item = (Shard, Option<Value>)>,
    ) -> Result<Vec<(StatusCode, Value)>> {
        let ask = |(shard, body): (Shard, Option<Value>)| async move {
            self.ask(&shard, &self.call.query, body.as_ref()).await
        };
        try_join_all(asked.into_iter().map(ask)).await
    }

    /// The parameters of a request to a shard: the state of the past is one of its own.
    fn at_state<'q>(&self, shard: &Shard, query: &'q Query) -> Cow<'q, Query> {
        let entered = self.call.virtual_database.as_ref().filter(|_| query.text("as_of").is_some());
        match entered.and_then(|entered| entered.as_of(shard)) {
            Some(state) => {
                let mut query = query.clone();
                query.set("as_of", state);
                Cow::Owned(query)
            }
            None => Cow::Borrowed(query),
        }
    }

    fn method(&self, has_body: bool) -> Method {
        if has_body { self.methods.1.clone() } else { self.methods.0.clone() }
    }

    /// The answer of a shard on this server.
    ///
    /// # Errors
    /// Those of the handler; 500 for a shard on another server.
    pub(super) async fn respond(&self, shard: &Shard, query: &Query, body: Option<&Value>) -> Result<HttpResponse> {
        let served = shard.here().ok_or_else(|| Failure::internal("the shard is on another server"))?;
        self.respond_here(served, query, body.map(|body| Bytes::from(body.to_json()))).await
    }

    async fn respond_here(
        &self,
        served: &Arc<ServedDatabase>,
        query: &Query,
        body: Option<Bytes>,
    ) -> Result<HttpResponse> {
        let parameters = self.parameters.as_ref().unwrap_or(&self.call.parameters).clone();
        let mut asked = self.call.derived(self.method(body.is_some()), parameters, query.clone(), body);
        asked.part = Some(served.clone());
        (self.handler)(asked).await
    }

    async fn ask_here(
        &self,
        served: &Arc<ServedDatabase>,
        query: &Query,
        body: Option<Bytes>,
    ) -> Result<(StatusCode, Bytes)> {
        let response = self.respond_here(served, query, body).await?.into_response();
        let timeouts = BodyTimeout::for_peer(self.call.state.config.limits.stall_timeout);
        let status = response.status();
        let answer = read_all(response.into_body(), ANSWER_BYTES_MAX, timeouts, Some(&self.call.reservation)).await?;
        match status.is_success() {
            true => Ok((status, answer)),
            false => Err(Failure::new(status, "unknown", format!("a shard answers with {status}"))),
        }
    }
}

/// The headers by which a request to a shard on another server is one of the user.
///
/// # Errors
/// 503 if the server does not answer.
pub(super) async fn on_behalf(call: &Call, open: &OpenVirtual, remote: &RemoteShard) -> Result<HeaderMap> {
    let header = remote.on_behalf(open, &call.user, call.restriction.as_ref()).await?;
    Ok([header].into_iter().collect())
}

/// Parameters as the end of a URL.
pub(super) fn query_text(query: &Query) -> String {
    let parameters: Vec<String> =
        query.iter().map(|(name, value)| format!("{}={}", encode_segment(name), encode_segment(value))).collect();
    if parameters.is_empty() { String::new() } else { format!("?{}", parameters.join("&")) }
}
