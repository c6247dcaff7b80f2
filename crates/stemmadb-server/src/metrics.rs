//! Request metrics: counts and durations by route, and of queries by database, in Prometheus's text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use parking_lot::Mutex;

/// The upper bounds of the histogram's buckets, in seconds.
const BOUNDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The route label of requests that match no route.
pub(crate) const NO_ROUTE: &str = "none";

/// The method label of requests by the wire protocol, whose route label is the operation.
pub(crate) const WIRE_METHOD: &str = "WIRE";

/// Counters of requests.
#[derive(Default)]
pub(crate) struct Metrics(Mutex<RequestCounters>);

#[derive(Default)]
struct RequestCounters {
    /// By route, method and status. All three come from fixed lists, so clients can't create labels.
    requests: BTreeMap<(&'static str, &'static str, u16), u64>,
    times: BTreeMap<(&'static str, &'static str), Histogram>,
    /// By database and kind of query. Only databases that exist have an entry.
    queries: BTreeMap<String, BTreeMap<&'static str, QueryCounters>>,
}

/// The queries of one kind in one database.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct QueryCounters {
    pub(crate) count: u64,
    /// The time until the last row, in seconds.
    pub(crate) seconds: f64,
    /// The documents or view rows that were read.
    pub(crate) rows_read: u64,
}

/// Measures a query until it is dropped.
pub(crate) struct QueryTimer {
    metrics: Arc<Metrics>,
    database: String,
    kind: &'static str,
    started: Instant,
    rows_read: u64,
}

impl QueryTimer {
    /// Starts measuring a query of `database`.
    pub(crate) fn start(metrics: &Arc<Metrics>, database: &str, kind: &'static str) -> Self {
        let (metrics, database) = (metrics.clone(), database.to_owned());
        QueryTimer { metrics, database, kind, started: Instant::now(), rows_read: 0 }
    }

    /// Adds documents or view rows that were read.
    pub(crate) fn add_rows_read(&mut self, count: u64) {
        self.rows_read += count;
    }
}

impl Drop for QueryTimer {
    fn drop(&mut self) {
        let time = self.started.elapsed();
        self.metrics.note_query(&self.database, self.kind, self.rows_read, time);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Histogram {
    /// Counts per bucket, not cumulative. The last is for durations above all bounds.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    fn add(&mut self, seconds: f64) {
        self.counts[BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len())] += 1;
        self.sum += seconds;
    }
}

impl Metrics {
    /// Counts a request and the time until its response.
    pub(crate) fn note(&self, route: &'static str, method: &Method, status: u16, time: Duration) {
        self.count(route, method_label(method), status, Some(time));
    }

    /// Counts a request by the wire protocol, and its time unless it is none.
    pub(crate) fn note_wire(&self, operation: &'static str, status: u16, time: Option<Duration>) {
        self.count(operation, WIRE_METHOD, status, time);
    }

    fn count(&self, route: &'static str, method: &'static str, status: u16, time: Option<Duration>) {
        let mut counters = self.0.lock();
        *counters.requests.entry((route, method, status)).or_default() += 1;
        if let Some(time) = time {
            counters.times.entry((route, method)).or_default().add(time.as_secs_f64());
        }
    }

    /// Counts a query.
    fn note_query(&self, database: &str, kind: &'static str, rows_read: u64, time: Duration) {
        let mut counters = self.0.lock();
        let by_kind = match counters.queries.get_mut(database) {
            Some(by_kind) => by_kind,
            None => counters.queries.entry(database.to_owned()).or_default(),
        };
        let counters = by_kind.entry(kind).or_default();
        counters.count += 1;
        counters.seconds += time.as_secs_f64();
        counters.rows_read += rows_read;
    }

    /// Removes the counters of a database that was deleted.
    pub(crate) fn forget_database(&self, database: &str) {
        self.0.lock().queries.remove(database);
    }

    /// The queries of a database by kind.
    pub(crate) fn queries_of(&self, database: &str) -> BTreeMap<&'static str, QueryCounters> {
        self.0.lock().queries.get(database).cloned().unwrap_or_default()
    }

    /// The queries of all databases by kind.
    pub(crate) fn queries(&self) -> BTreeMap<String, BTreeMap<&'static str, QueryCounters>> {
        self.0.lock().queries.clone()
    }

    /// The number of requests by method and by status.
    pub(crate) fn totals(&self) -> (BTreeMap<&'static str, u64>, BTreeMap<u16, u64>) {
        let (mut methods, mut statuses) = (BTreeMap::new(), BTreeMap::new());
        for ((_, method, status), count) in &self.0.lock().requests {
            *methods.entry(*method).or_default() += count;
            *statuses.entry(*status).or_default() += count;
        }
        (methods, statuses)
    }

    /// The number of requests, and their total duration in seconds.
    pub(crate) fn times(&self) -> (u64, f64) {
        let counters = self.0.lock();
        let count = counters.times.values().flat_map(|histogram| histogram.counts).sum();
        (count, counters.times.values().map(|histogram| histogram.sum).sum())
    }

    /// Prints all metrics.
    pub(crate) fn print(&self, page: &mut MetricsPage) {
        let counters = self.0.lock();
        page.family("stemma_requests_total", "counter", "Requests that were answered.");
        for ((route, method, status), count) in &counters.requests {
            let status = status.to_string();
            let labels = [("route", *route), ("method", *method), ("status", &status)];
            page.sample("stemma_requests_total", &labels, *count as f64);
        }
        page.family("stemma_request_seconds", "histogram", "How long requests took until their answer began.");
        for ((route, method), histogram) in &counters.times {
            let mut count = 0;
            let bounds = BOUNDS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (bound, in_bucket) in bounds.zip(histogram.counts) {
                count += in_bucket;
                let labels = [("route", *route), ("method", *method), ("le", &bound)];
                page.sample("stemma_request_seconds_bucket", &labels, count as f64);
            }
            let labels = [("route", *route), ("method", *method)];
            page.sample("stemma_request_seconds_sum", &labels, histogram.sum);
            page.sample("stemma_request_seconds_count", &labels, count as f64);
        }
        drop(counters);
        self.print_queries(page);
    }

    fn print_queries(&self, page: &mut MetricsPage) {
        let all = self.queries();
        let mut family = |name: &str, help: &str, value: fn(&QueryCounters) -> f64| {
            page.family(name, "counter", help);
            for (database, by_kind) in &all {
                for (kind, counters) in by_kind {
                    page.sample(name, &[("database", database), ("kind", kind)], value(counters));
                }
            }
        };
        family("stemma_queries_total", "Queries by database.", |counters| counters.count as f64);
        family("stemma_query_seconds_total", "Time of queries until their last row.", |counters| counters.seconds);
        family("stemma_query_rows_read_total", "Documents and view rows that queries read.", |counters| {
            counters.rows_read as f64
        });
    }
}

/// The label of a method; `other` for unknown ones, since clients can send any.
fn method_label(method: &Method) -> &'static str {
    let all = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "COPY", "OPTIONS"];
    all.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// A page in Prometheus's text format.
#[derive(Default)]
pub(crate) struct MetricsPage(String);

impl MetricsPage {
    /// Starts a metric family.
    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string can't fail.
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> = labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.0, "{name}{labels} {value}").ok();
    }

    /// Writes a metric family of one sample without labels.
    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_and_printed() {
        let metrics = Metrics::default();
        for millis in [1, 3, 3, 9000] {
            metrics.note("/{db}", &Method::GET, 200, Duration::from_millis(millis));
        }
        metrics.note(NO_ROUTE, &Method::from_bytes(b"BREW").unwrap(), 404, Duration::ZERO);
        let mut page = MetricsPage::default();
        metrics.print(&mut page);
        page.single("x", "gauge", "A \"thing\".", 1.5);
        let text = page.into_text();
        for line in [
            "stemma_requests_total{route=\"/{db}\",method=\"GET\",status=\"200\"} 4",
            "stemma_requests_total{route=\"none\",method=\"other\",status=\"404\"} 1",
            "stemma_request_seconds_bucket{route=\"/{db}\",method=\"GET\",le=\"0.0005\"} 0",
            "stemma_request_seconds_bucket{route=\"/{db}\",method=\"GET\",le=\"0.001\"} 1",
            "stemma_request_seconds_bucket{route=\"/{db}\",method=\"GET\",le=\"0.005\"} 3",
            "stemma_request_seconds_bucket{route=\"/{db}\",method=\"GET\",le=\"5\"} 3",
            "stemma_request_seconds_bucket{route=\"/{db}\",method=\"GET\",le=\"+Inf\"} 4",
            "stemma_request_seconds_count{route=\"/{db}\",method=\"GET\"} 4",
            "# TYPE stemma_request_seconds histogram",
            "x 1.5",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        assert_eq!(metrics.totals().1, [(200, 4), (404, 1)].into_iter().collect());
    }

    #[test]
    fn queries_are_counted_by_database() {
        let metrics = Arc::new(Metrics::default());
        for rows_read in [2, 3] {
            QueryTimer::start(&metrics, "shop", "find").add_rows_read(rows_read);
        }
        drop(QueryTimer::start(&metrics, "shop", "view"));
        let of_shop = metrics.queries_of("shop");
        assert_eq!((of_shop["find"].count, of_shop["find"].rows_read, of_shop["view"].count), (2, 5, 1));
        let mut page = MetricsPage::default();
        metrics.print(&mut page);
        let text = page.into_text();
        assert!(text.contains("stemma_queries_total{database=\"shop\",kind=\"find\"} 2\n"), "{text}");
        assert!(text.contains("stemma_query_rows_read_total{database=\"shop\",kind=\"find\"} 5\n"), "{text}");
        metrics.forget_database("shop");
        assert!(metrics.queries().is_empty());
    }

    #[test]
    fn labels_are_escaped() {
        let mut page = MetricsPage::default();
        page.sample("x", &[("l", "a\"b\\c\nd")], 1.0);
        assert_eq!(page.into_text(), "x{l=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
