//! How much of the past a database keeps: `_retention`.

use hyper::StatusCode;
use serde_json::{Map, Value as Json, json};
use stemmadb::past::Retention;
use stemmadb::{Object, Value};

use crate::app::Call;
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};

/// `GET /{db}/_retention`
pub(crate) async fn get(call: Call) -> Result<HttpResponse> {
    let served = call.open_database().await?;
    let history = served.database().history();
    let prefixes: Map<String, Json> =
        history.prefixes().into_iter().map(|(prefix, retention)| (prefix, json_of(retention))).collect();
    let pins: Map<String, Json> =
        history.pins().into_iter().map(|(name, at)| (name, served.sequence_text(at).into())).collect();
    HttpResponse::ok(&json!({
        "retention": json_of(history.retention()),
        "prefixes": prefixes,
        "pins": pins,
        "oldest_seq": served.sequence_text(history.oldest()),
        "bytes": history.byte_count(),
    }))
}

fn json_of(retention: Retention) -> Json {
    retention.to_value().deserialize_into().unwrap_or_default()
}

/// `PUT /{db}/_retention`: sets what the body has, and leaves the rest.
pub(crate) async fn put(mut call: Call) -> Result<HttpResponse> {
    let Value::Object(mut body) = call.json().await? else {
        return Err(Failure::bad_request("Request body must be a JSON object"));
    };
    let retention = body.remove("retention").map(|retention| Retention::parse(&retention)).transpose()?;
    let prefixes = match body.remove("prefixes") {
        None => Object::new(),
        Some(Value::Object(prefixes)) => prefixes,
        Some(_) => return Err(Failure::bad_request("`prefixes` must be an object of retentions by prefix")),
    };
    if let Some(name) = body.names().next() {
        return Err(Failure::bad_request(format!("A retention has `retention` and `prefixes`, not `{name}`")));
    }
    let of_prefix = |(prefix, retention): (&str, &Value)| match retention {
        Value::Null => Ok((prefix.to_owned(), None)),
        retention => Ok((prefix.to_owned(), Some(Retention::parse(retention)?))),
    };
    let prefixes = prefixes.iter().map(of_prefix).collect::<Result<Vec<_>>>()?;
    let served = call.open_database().await?;
    blocking(move || {
        let history = served.database().history();
        for (prefix, retention) in prefixes {
            history.keep_of_prefix(&prefix, retention)?;
        }
        retention.map_or(Ok(()), |retention| history.keep(retention))?;
        Ok(HttpResponse::done(StatusCode::OK))
    })
    .await
}
