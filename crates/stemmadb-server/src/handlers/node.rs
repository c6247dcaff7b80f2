//! Routes below `_node/{node}`, and `_metrics`: metrics and information about the server process.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use stemmadb::backup::FollowStatus;

use crate::app::{Call, ServerState};
use crate::error::{Failure, Result};
use crate::http::{HttpResponse, blocking};
use crate::metrics::{MetricsPage, QueryCounters};

/// The name of the only node, as in a single-node CouchDB.
pub(crate) const NODE: &str = "nonode@nohost";

/// The name of this server where clients see which one does something: its URL in a cluster.
pub(crate) fn node_name(state: &ServerState) -> &str {
    state.directory.own_address().unwrap_or(NODE)
}

/// Checks that the path names the only node.
pub(super) fn check_node(call: &Call) -> Result<()> {
    match call.parameter("node")? {
        "_local" | NODE => Ok(()),
        other => Err(Failure::not_found(format!("no such node: {other}"))),
    }
}

/// `GET /_node/{node}`
pub(crate) async fn name(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    HttpResponse::ok(&json!({ "name": NODE }))
}

/// `GET /_node/{node}/_prometheus`
pub(crate) async fn prometheus(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    metrics(call).await
}

/// `GET /_metrics`
pub(crate) async fn metrics(call: Call) -> Result<HttpResponse> {
    let state = call.state.clone();
    let text = blocking(move || Ok(page(&state))).await?;
    Ok(HttpResponse::text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// Collects all metrics.
fn page(state: &ServerState) -> String {
    let mut page = MetricsPage::default();
    page.family("stemma_info", "gauge", "The server version.");
    page.sample("stemma_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let uptime = state.started.elapsed().as_secs_f64();
    page.single("stemma_uptime_seconds", "gauge", "Time since the server started.", uptime);
    state.metrics.print(&mut page);
    let connections = state.connections.count() as f64;
    page.single("stemma_connections", "gauge", "Open connections.", connections);
    let refused = state.connections.refused_count() as f64;
    let help = "Connections closed because their address had too many.";
    page.single("stemma_connections_refused_total", "counter", help, refused);
    databases(state, &mut page);
    let workers = state.scripts.worker_count() as f64;
    page.single("stemma_script_workers", "gauge", "Processes that run design document functions.", workers);
    page.family("stemma_replications", "gauge", "Replications by state.");
    for (status, count) in state.jobs.counts() {
        page.sample("stemma_replications", &[("state", status)], count as f64);
    }
    page.family("stemma_replication_changes_pending", "gauge", "Changes that a replication has not read yet.");
    for job in state.jobs.all() {
        if let Some(count) = job.status().done.pending_count {
            page.sample("stemma_replication_changes_pending", &[("job", &job.id)], count as f64);
        }
    }
    backups(state, &mut page);
    if let Some(bytes) = resident_bytes() {
        let help = "Resident memory of this process, including mapped files.";
        page.single("process_resident_memory_bytes", "gauge", help, bytes as f64);
    }
    page.into_text()
}

fn databases(state: &ServerState, page: &mut MetricsPage) {
    let opened = state.directory.opened();
    let known = state.directory.names().len();
    page.single("stemma_databases", "gauge", "All databases.", known as f64);
    page.single("stemma_databases_open", "gauge", "Open databases.", opened.len() as f64);
    // Skip databases that are being closed.
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
        "Times that a writer waited for a tree.",
        sum(|info| info.stall_count),
    );
    page.single("stemma_log_bytes", "gauge", "Log bytes of open databases.", sum(|info| info.log_bytes));
    page.single("stemma_memtable_bytes", "gauge", "Bytes of recent writes in memory.", sum(|info| info.memory_bytes));
    page.single(
        "stemma_changes_total",
        "counter",
        "Document changes in open databases.",
        sum(|info| info.sequence.get()),
    );
}

/// The continuous backups, by database.
fn backups(state: &ServerState, page: &mut MetricsPage) {
    let statuses = state.shipping.statuses();
    let mut family = |name: &str, help: &str, value: fn(&FollowStatus) -> f64| {
        page.family(name, "gauge", help);
        for (database, status) in &statuses {
            page.sample(name, &[("database", database)], value(status));
        }
    };
    family("stemma_backup_lag_seconds", "At most this old is the oldest change that the backups lack.", |status| {
        status.lag.as_secs_f64()
    });
    family("stemma_backup_lag_sequences", "Sequences that the backups lack.", |status| status.lag_sequences as f64);
    family("stemma_backup_failures", "Attempts that failed since the last one that succeeded.", |status| {
        f64::from(status.failure_count)
    });
    family("stemma_backup_running", "Whether the continuous backup goes on: 1 or 0.", |status| {
        f64::from(u8::from(status.is_running))
    });
    family("stemma_backup_check_failed", "Whether the last check of a restore failed: 1 or 0.", |status| {
        let has_failed = status.check.as_ref().is_some_and(|check| check.error.is_some());
        f64::from(u8::from(has_failed))
    });
}

/// The resident memory of this process, if the system reports it.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// `GET /_node/{node}/_stats`
pub(crate) async fn stats(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    HttpResponse::ok(&all_stats(&call.state))
}

/// `GET /_node/{node}/_stats/{rest*}`
pub(crate) async fn stat(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    let all = all_stats(&call.state);
    let found = call.parameter("rest")?.split('/').try_fold(&all, |at, name| at.get(name));
    HttpResponse::ok(found.ok_or_else(Failure::missing)?)
}

/// All metrics in CouchDB's format.
fn all_stats(state: &ServerState) -> Value {
    let counter = |count: u64, description: &str| json!({"value": count, "type": "counter", "desc": description});
    let (methods, statuses) = state.metrics.totals();
    let total: u64 = methods.values().sum();
    let (count, seconds) = state.metrics.times();
    let mean = if count == 0 { 0.0 } else { seconds * 1000.0 / count as f64 };
    let counters = |counts: Vec<(String, u64)>, what: &str| {
        let object = counts.into_iter().map(|(name, count)| {
            let description = format!("number of {what} {name}");
            (name, counter(count, &description))
        });
        Value::Object(object.collect::<Map<_, _>>())
    };
    let methods = methods.into_iter().map(|(method, count)| (method.to_owned(), count)).collect();
    let statuses = statuses.into_iter().map(|(status, count)| (status.to_string(), count)).collect();
    let open_count = state.directory.opened().len() as u64;
    json!({"stemma": {"queries": queries(state)}, "couchdb": {
        "httpd": {"requests": counter(total, "number of HTTP requests")},
        "httpd_request_methods": counters(methods, "requests with method"),
        "httpd_status_codes": counters(statuses, "responses with status"),
        "open_databases": counter(open_count, "number of open databases"),
        "request_time": {
            "value": {"n": count, "arithmetic_mean": mean},
            "type": "histogram",
            "desc": "milliseconds until the response starts",
        },
    }})
}

/// The queries of each database, by kind.
fn queries(state: &ServerState) -> Value {
    let all = state.metrics.queries().into_iter();
    Value::Object(all.map(|(database, by_kind)| (database, query_counters(&by_kind))).collect())
}

/// Counters of queries by kind.
pub(super) fn query_counters(by_kind: &BTreeMap<&'static str, QueryCounters>) -> Value {
    let counters = by_kind.iter().map(|(kind, counters)| {
        let QueryCounters { count, seconds, rows_read } = counters;
        ((*kind).to_owned(), json!({"count": count, "seconds": seconds, "rows_read": rows_read}))
    });
    Value::Object(counters.collect::<Map<_, _>>())
}

/// `GET /_node/{node}/_system`
pub(crate) async fn system(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    let state = &call.state;
    HttpResponse::ok(&json!({
        "uptime": state.started.elapsed().as_secs(),
        "memory": {"total": resident_bytes()},
        "os_proc_count": state.scripts.worker_count(),
        "connections": state.connections.count(),
    }))
}

/// `GET /_node/{node}/_versions`
pub(crate) async fn versions(call: Call) -> Result<HttpResponse> {
    check_node(&call)?;
    HttpResponse::ok(&json!({
        "javascript_engine": {"name": "quickjs"},
        "stemma": {"version": env!("CARGO_PKG_VERSION")},
    }))
}

/// `POST /_node/{node}/_restart`
pub(crate) async fn restart(_call: Call) -> Result<HttpResponse> {
    Err(Failure::not_implemented(
        "The server can't restart itself: use its service manager, such as `systemctl restart`.",
    ))
}
