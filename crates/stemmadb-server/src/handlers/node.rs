//! `_node/{node}/…`: numbers of the server as monitoring asks them, and what is not to be had over HTTP.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::app::{Call, State};
use crate::error::{Failure, Result};
use crate::http::{Answer, blocking};
use crate::metrics::Page;

/// The name of the one node there is.
pub(crate) const NODE: &str = "nonode@nohost";

/// Refuses other nodes than the one there is.
pub(super) fn check(call: &Call) -> Result<()> {
    match call.parameter("node")? {
        "_local" | NODE => Ok(()),
        other => Err(Failure::not_found(format!("no such node: {other}"))),
    }
}

/// `GET /_node/{node}`
pub(crate) async fn name(call: Call) -> Result<Answer> {
    check(&call)?;
    Answer::ok(&json!({ "name": NODE }))
}

/// `GET /_node/{node}/_prometheus`
pub(crate) async fn prometheus(call: Call) -> Result<Answer> {
    check(&call)?;
    metrics(call).await
}

/// `GET /_metrics`
pub(crate) async fn metrics(call: Call) -> Result<Answer> {
    let state = call.state.clone();
    let text = blocking(move || Ok(page(&state))).await?;
    Ok(Answer::text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Everything that is counted, and what is looked up.
fn page(state: &State) -> String {
    let mut page = Page::default();
    page.family("stemma_info", "gauge", "The version.");
    page.sample("stemma_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let uptime = state.started.elapsed().as_secs_f64();
    page.single("stemma_uptime_seconds", "gauge", "How long the server has been running.", uptime);
    state.metrics.print(&mut page);
    let connections = state.connections.count() as f64;
    page.single("stemma_connections", "gauge", "Connections that are open.", connections);
    let refused = state.connections.refused_count() as f64;
    let help = "Connections that were closed since their address had as many as it may.";
    page.single("stemma_connections_refused_total", "counter", help, refused);
    databases(state, &mut page);
    let workers = state.scripts.worker_count() as f64;
    page.single("stemma_script_workers", "gauge", "Processes that run functions of design documents.", workers);
    page.family("stemma_replications", "gauge", "Replications, by how they stand.");
    for (status, count) in state.jobs.counts() {
        page.sample("stemma_replications", &[("state", status)], count as f64);
    }
    if let Some(bytes) = resident_bytes() {
        let help = "Memory of this process, with the parts of files that are mapped.";
        page.single("process_resident_memory_bytes", "gauge", help, bytes as f64);
    }
    page.into_text()
}

fn databases(state: &State, page: &mut Page) {
    let opened = state.directory.opened();
    let known = state.directory.names().len();
    page.single("stemma_databases", "gauge", "Databases that there are.", known as f64);
    page.single("stemma_databases_open", "gauge", "Databases that are open.", opened.len() as f64);
    // One that is being closed is not counted.
    let infos: Vec<_> = opened.iter().filter_map(|served| served.database().info().ok()).collect();
    let sum = |of: fn(&stemmadb::Info) -> u64| infos.iter().map(of).sum::<u64>() as f64;
    page.single(
        "stemma_log_writes_total",
        "counter",
        "Writes to logs of open databases.",
        sum(|info| info.write_count),
    );
    page.single(
        "stemma_log_flushes_total",
        "counter",
        "Flushes of logs of open databases.",
        sum(|info| info.flush_count),
    );
    page.single(
        "stemma_stalls_total",
        "counter",
        "Times that writers waited for a tree.",
        sum(|info| info.stall_count),
    );
    page.single("stemma_log_bytes", "gauge", "Bytes of logs of open databases.", sum(|info| info.log_bytes));
    page.single("stemma_memtable_bytes", "gauge", "Recent writes in memory.", sum(|info| info.memory_bytes));
    page.single(
        "stemma_changes_total",
        "counter",
        "Changes of documents in open databases.",
        sum(|info| info.sequence.get()),
    );
}

/// Memory of this process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// `GET /_node/{node}/_stats`
pub(crate) async fn stats(call: Call) -> Result<Answer> {
    check(&call)?;
    Answer::ok(&all_stats(&call.state))
}

/// `GET /_node/{node}/_stats/{rest*}`
pub(crate) async fn stat(call: Call) -> Result<Answer> {
    check(&call)?;
    let all = all_stats(&call.state);
    let found = call.parameter("rest")?.split('/').try_fold(&all, |at, name| at.get(name));
    Answer::ok(found.ok_or_else(Failure::missing)?)
}

/// What is counted, in CouchDB's form.
fn all_stats(state: &State) -> Value {
    let counter = |count: u64, about: &str| json!({"value": count, "type": "counter", "desc": about});
    let (methods, statuses) = state.metrics.totals();
    let total: u64 = methods.values().sum();
    let (count, seconds) = state.metrics.times();
    let mean = if count == 0 { 0.0 } else { seconds * 1000.0 / count as f64 };
    let by = |counts: Vec<(String, u64)>, what: &str| {
        let told = counts.into_iter().map(|(name, count)| {
            let about = format!("number of {what} {name}");
            (name, counter(count, &about))
        });
        Value::Object(told.collect::<Map<_, _>>())
    };
    let methods = methods.into_iter().map(|(method, count)| (method.to_owned(), count)).collect();
    let statuses = statuses.into_iter().map(|(status, count)| (status.to_string(), count)).collect();
    let open_count = state.directory.opened().len() as u64;
    json!({"couchdb": {
        "httpd": {"requests": counter(total, "number of HTTP requests")},
        "httpd_request_methods": by(methods, "requests by"),
        "httpd_status_codes": by(statuses, "answers with status"),
        "open_databases": counter(open_count, "number of open databases"),
        "request_time": {
            "value": {"n": count, "arithmetic_mean": mean},
            "type": "histogram",
            "desc": "milliseconds until an answer begins",
        },
    }})
}

/// `GET /_node/{node}/_system`
pub(crate) async fn system(call: Call) -> Result<Answer> {
    check(&call)?;
    let state = &call.state;
    Answer::ok(&json!({
        "uptime": state.started.elapsed().as_secs(),
        "memory": {"total": resident_bytes()},
        "os_proc_count": state.scripts.worker_count(),
        "connections": state.connections.count(),
    }))
}

/// `GET /_node/{node}/_versions`
pub(crate) async fn versions(call: Call) -> Result<Answer> {
    check(&call)?;
    Answer::ok(&json!({
        "javascript_engine": {"name": "quickjs"},
        "stemma": {"version": env!("CARGO_PKG_VERSION")},
    }))
}

/// `POST /_node/{node}/_restart`
pub(crate) async fn restart(_call: Call) -> Result<Answer> {
    Err(Failure::not_implemented(
        "A server is restarted by what started it: systemctl restart, or the container's manager.",
    ))
}
