//! Explain: the plan of a query and its measurements, as text and as JSON.

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::time::Instant;

use super::cursor::{Checks, Cursor, Recheck};
use super::estimate::estimate;
use super::evaluate::Trace;
use super::exclusions::without_vacuous_exclusions;
use crate::Result;
use crate::index::{PathNumber, Paths, Presence};
use crate::query::language::interval::KeyRange;
use crate::query::language::normal::Normal;
use crate::query::language::print;
use crate::query::plan::catalog::Catalog;
use crate::query::plan::request::{Prepared, Query};
use crate::query::plan::{DrivingCondition, Node, Order, Plan, ValueTest, Values};
use crate::query::source::QuerySource;
use crate::value::collate::key::{self, Tag};
use crate::value::{Object, Value};

/// Larger plans are shown without estimates.
const ESTIMATED_MAX: usize = 1_000;
/// The number of hits that an analysis verifies at once.
const BATCH: usize = 256;

/// The plan of a query, as returned by [`Find::explain`](crate::Find::explain): what is read from the index, what is
/// checked on documents, and how rows are ordered.
///
/// Each step has an estimated number of documents. After [`Find::explain_analyze`](crate::Find::explain_analyze) it
/// also has the actual number and the time in microseconds. [`Display`](fmt::Display) prints a tree of lines;
/// [`Explanation::to_value`] returns JSON.
///
/// ```
/// # use stemmadb::{Database, field};
/// # fn main() -> stemmadb::Result<()> {
/// # let db = Database::in_memory();
/// # db.insert("dune", &serde_json::json!({"year": 1965}))?;
/// let plan = db.find(field("year").ge(1960)).explain_analyze()?;
/// println!("{plan}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Explanation {
    filter: ExplainStep,
    /// The estimated number of rows without a limit.
    estimated: Option<u64>,
    residual: Option<Value>,
    order: String,
    sort: Value,
    limit: Option<u64>,
    skip: u64,
    run_statistics: Option<RunStatistics>,
}

/// One step of the filter.
#[derive(Clone, Debug)]
struct ExplainStep {
    /// The name of the operation.
    operation: &'static str,
    path: Option<String>,
    /// The operands.
    detail: Option<String>,
    is_exact: bool,
    /// The measured result; `None` if the step was not evaluated.
    found: Option<StepCounts>,
    /// The estimated number of documents.
    estimated: Option<u64>,
    /// Whether evaluation was abandoned in favor of reading documents.
    is_abandoned: bool,
    children: Vec<ExplainStep>,
}

#[derive(Clone, Copy, Debug)]
struct StepCounts {
    certain_count: u64,
    maybe_count: u64,
    time_us: u64,
}

/// Measurements of an execution.
#[derive(Clone, Copy, Debug)]
struct RunStatistics {
    row_count: u64,
    documents_read: u64,
    /// Documents read to decide whether they match.
    checks: Checks,
    values_walked: u64,
    time_us: u64,
}

pub(in crate::query) fn explain<S: QuerySource>(source: S, query: &Query, analyze: bool) -> Result<Explanation> {
    let prepared = query.prepare()?;
    if !analyze {
        let catalog = Catalog::of(&source);
        let plan = without_vacuous_exclusions(prepared.plan(prepared.limit.is_some(), catalog), &source)?;
        let order = match &plan.order {
            Order::Insertion => "by number".into(),
            Order::Sorted { declared: Some(walk), .. } if walk.rest == Node::All => {
                format!("walked in the order of index `{}`", walk.name).into()
            }
            Order::Sorted { declared: Some(walk), .. } => {
                format!("walked in the order of index `{}` or collected, whichever is cheaper", walk.name).into()
            }
            Order::Sorted { walk: Some(_), .. } => {
                "walked in the order of values or collected, whichever is cheaper".into()
            }
            Order::Sorted { walk: None, .. } => "collected and sorted".into(),
        };
        let mut filter = ExplainStep::new(&plan.filter, source.paths(), &Trace::default());
        filter.estimate(&plan.filter, &source, source.live_len()?)?;
        let estimated = filter.estimated;
        return Ok(Explanation::new(&prepared, &plan, filter, estimated, order, None));
    }
    let started = Instant::now();
    let mut trace = Trace::default();
    let mut cursor = Cursor::open(source, &prepared, Some(&mut trace))?;
    let order = cursor.order_name();
    let row_count = run(&mut cursor, &prepared)?;
    query.limits().allow_rows(row_count)?;
    let filtered = &cursor.filtered;
    let run_statistics = RunStatistics {
        row_count,
        documents_read: filtered.documents_read(),
        checks: filtered.checks(),
        values_walked: filtered.values_walked(),
        time_us: microseconds(started.elapsed()),
    };
    // Estimates are computed after the time is taken; the snapshot is the same.
    let (source, plan, all) = (&filtered.source, &filtered.plan, filtered.source.live_len()?);
    let filter = match cursor.driving() {
        Some(driving) => ExplainStep::driven(driving, source, all, &trace)?,
        None => {
            let mut filter = ExplainStep::new(&plan.filter, source.paths(), &trace);
            filter.estimate(&plan.filter, source, all)?;
            filter
        }
    };
    let estimated = estimate(&plan.filter, source, all)?;
    Ok(Explanation::new(&prepared, plan, filter, Some(estimated), order, Some(run_statistics)))
}

/// Runs a query to its last row and counts the rows.
fn run<S: QuerySource>(cursor: &mut Cursor<S>, prepared: &Prepared) -> Result<u64> {
    let rows_needed = prepared.limit.unwrap_or(u64::MAX).saturating_add(prepared.skip);
    let mut found = 0;
    while found < rows_needed {
        let left = usize::try_from(rows_needed - found).unwrap_or(usize::MAX);
        let hits = cursor.next_hits(BATCH.min(left))?;
        if hits.is_empty() {
            break;
        }
        found += cursor.filtered.verify(hits)?.iter().filter(|hit| hit.recheck == Recheck::None).count() as u64;
    }
    Ok(found.min(rows_needed).saturating_sub(prepared.skip))
}

fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Explanation {
    fn new(
        prepared: &Prepared,
        plan: &Plan,
        filter: ExplainStep,
        estimated: Option<u64>,
        order: Cow<'static, str>,
        run_statistics: Option<RunStatistics>,
    ) -> Self {
        let residual = (plan.residual != Normal::Everything).then(|| print::normal(&plan.residual));
        Explanation {
            filter,
            estimated,
            residual,
            order: order.into_owned(),
            sort: prepared.sort.to_value(),
            limit: prepared.limit,
            skip: prepared.skip,
            run_statistics,
        }
    }

    /// The checks on documents, if the query ran and had a residual condition or checked any document.
    fn checks(&self) -> Option<Checks> {
        let checks = self.run_statistics.as_ref()?.checks;
        (checks.count > 0 || self.residual.is_some()).then_some(checks)
    }

    /// Returns the explanation as JSON.
    ///
    /// `filter` is a tree of steps. Each has its `operation`, `path`, `detail`, its `estimated_rows` and, if analyzed,
    /// `rows`, the `undecided` ones among the candidates and `time_us`; `of` contains its child steps. Steps read only
    /// the index. `check` reports the documents that were read to decide whether they match, and the top-level
    /// `documents_read` counts these and the documents read for sorting.
    pub fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("filter", self.filter.to_value());
        if let Some(residual) = &self.residual {
            object.insert("checked_on_documents", residual.clone());
        }
        if let Some(checks) = self.checks() {
            let mut check = Object::new();
            check.insert("documents_read", checks.count);
            check.insert("rows", checks.matching_count);
            check.insert("time_us", microseconds(checks.time));
            object.insert("check", Value::Object(check));
        }
        object.insert("sort", self.sort.clone());
        object.insert("order", self.order.as_str());
        if let Some(limit) = self.limit {
            object.insert("limit", limit);
        }
        if self.skip > 0 {
            object.insert("skip", self.skip);
        }
        if let Some(estimated) = self.estimated {
            object.insert("estimated_rows", estimated);
        }
        if let Some(run_statistics) = &self.run_statistics {
            object.insert("rows", run_statistics.row_count);
            object.insert("documents_read", run_statistics.documents_read);
            if run_statistics.values_walked > 0 {
                object.insert("values_walked", run_statistics.values_walked);
            }
            object.insert("time_us", run_statistics.time_us);
        }
        Value::Object(object)
    }
}

impl fmt::Display for Explanation {
    /// Prints a tree of lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows {}", self.order)?;
        if let Value::Array(keys) = &self.sort
            && !keys.is_empty()
        {
            write!(f, ", sort {}", self.sort)?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit {limit}")?;
        }
        if self.skip > 0 {
            write!(f, ", skip {}", self.skip)?;
        }
        if let Some(run_statistics) = &self.run_statistics {
            let (rows, documents) =
                (counted(run_statistics.row_count, "row"), counted(run_statistics.documents_read, "document"));
            write!(f, ": {rows}{}, {documents} read", expectation(self.estimated))?;
            if run_statistics.values_walked > 0 {
                write!(f, ", {} walked", counted(run_statistics.values_walked, "value"))?;
            }
            write!(f, ", {} µs", run_statistics.time_us)?;
        }
        match (&self.residual, self.checks()) {
            (Some(residual), _) => write!(f, "\n  checked on documents: {residual}")?,
            (None, Some(_)) => write!(f, "\n  checked on documents: the whole selector")?,
            (None, None) => {}
        }
        match self.checks() {
            Some(Checks { count: 0, .. }) => write!(f, ": not needed")?,
            Some(Checks { count, matching_count, time }) => {
                write!(f, ": {matching_count} of {} match, {} µs", counted(count, "document"), microseconds(time))?;
            }
            None => {}
        }
        self.filter.write(f, 1)
    }
}

impl ExplainStep {
    fn new(node: &Node, paths: &Paths, trace: &Trace) -> Self {
        let (operation, path, detail) = describe(node);
        let children = node.children();
        let untraced = Trace::default();
        let traces = (0..children.len()).map(|at| trace.children.get(at).unwrap_or(&untraced));
        ExplainStep {
            operation,
            path: path.map(|path| paths.text(path).unwrap_or_else(|| format!("path {}", path.0))),
            detail,
            is_exact: node.is_exact(),
            found: trace.measured.map(|measured| StepCounts {
                certain_count: measured.certain_count,
                maybe_count: measured.maybe_count,
                time_us: microseconds(measured.time),
            }),
            estimated: None,
            is_abandoned: trace.is_abandoned,
            children: children.iter().zip(traces).map(|(child, trace)| ExplainStep::new(child, paths, trace)).collect(),
        }
    }

    /// Estimates the step and those below it. An estimate takes a few lookups for each step below, so each step is
    /// estimated once per ancestor.
    fn estimate(&mut self, node: &Node, source: &impl QuerySource, all: u64) -> Result<()> {
        if self.detail_count() > ESTIMATED_MAX {
            return Ok(());
        }
        self.estimated = Some(estimate(node, source, all)?);
        let mut children = node.children().into_iter();
        self.children.iter_mut().try_for_each(|child| match children.next() {
            Some(node) => child.estimate(node, source, all),
            None => Ok(()),
        })
    }

    /// The number of steps in this tree, including itself.
    fn detail_count(&self) -> usize {
        1 + self.children.iter().map(ExplainStep::detail_count).sum::<usize>()
    }

    /// The step of a driving condition, with the other conditions as its children.
    fn driven(driving: &DrivingCondition, source: &impl QuerySource, all: u64, trace: &Trace) -> Result<Self> {
        let paths = source.paths();
        let path = driving.path;
        let values = match &driving.values {
            Values::Range(range) => Node::Range { path, range: range.clone() },
            Values::Keys(keys) => Node::EqualAny { path, keys: keys.clone() },
            Values::Matching(range, test) => Node::Matching { path, range: range.clone(), test: test.clone() },
        };
        let mut step = ExplainStep::new(&values, paths, &Trace::default());
        step.estimate(&values, source, all)?;
        step.operation = "walk";
        let condition_nodes = [(&driving.others, &Trace::default(), Node::Empty), (&driving.rest, trace, Node::All)];
        for (node, trace, _) in condition_nodes.into_iter().filter(|(node, _, nothing)| *node != nothing) {
            let mut child = ExplainStep::new(node, paths, trace);
            child.estimate(node, source, all)?;
            step.children.push(child);
        }
        Ok(step)
    }

    fn to_value(&self) -> Value {
        let mut object = Object::new();
        object.insert("operation", self.operation);
        if let Some(path) = &self.path {
            object.insert("path", path.as_str());
        }
        if let Some(detail) = &self.detail {
            object.insert("detail", detail.as_str());
        }
        object.insert("exact", self.is_exact);
        if let Some(found) = &self.found {
            object.insert("rows", found.certain_count);
            object.insert("undecided", found.maybe_count);
            object.insert("time_us", found.time_us);
        }
        if let Some(estimated) = self.estimated {
            object.insert("estimated_rows", estimated);
        }
        if self.is_abandoned {
            object.insert("left_to_documents", true);
        }
        if !self.children.is_empty() {
            object.insert("of", Value::Array(self.children.iter().map(ExplainStep::to_value).collect()));
        }
        Value::Object(object)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        write!(f, "\n{:indent$}{}", "", self.operation, indent = depth * 2)?;
        if let Some(path) = &self.path {
            write!(f, " {path}")?;
        }
        if let Some(detail) = &self.detail {
            write!(f, " {detail}")?;
        }
        if let Some(found) = &self.found {
            write!(f, ": {}", counted(found.certain_count, "row"))?;
            if found.maybe_count > 0 {
                write!(f, ", {} undecided", found.maybe_count)?;
            }
            write!(f, "{}, {} µs", expectation(self.estimated), found.time_us)?;
        } else if let Some(estimated) = self.estimated {
            write!(f, ": about {}", counted(estimated, "row"))?;
        }
        if self.is_abandoned {
            write!(f, ": left to the documents")?;
        }
        self.children.iter().try_for_each(|child| child.write(f, depth + 1))
    }
}

/// A node's operation, path and detail.
fn describe(node: &Node) -> (&'static str, Option<PathNumber>, Option<String>) {
    match node {
        Node::Empty => ("nothing", None, None),
        Node::All => ("all documents", None, None),
        Node::Equal { path: PathNumber::ROOT, key } => ("collection", None, Some(show_key(key))),
        Node::Equal { path, key } => ("equal", Some(*path), Some(show_key(key))),
        Node::EqualAny { path, keys } => ("equal to one of", Some(*path), Some(show_keys(keys))),
        Node::Range { path, range } => ("range", Some(*path), Some(show_range(range))),
        Node::Presence { path, kinds } => ("presence", Some(*path), Some(show_kinds(kinds))),
        Node::Matching { path, range, test } => {
            ("distinct values", Some(*path), Some(format!("{} that match {}", show_range(range), show_test(test))))
        }
        Node::Ids(ids) => ("ids", None, Some(shorten(&ids.join(", ")))),
        Node::IdRange { lower, upper } => ("range of ids", None, Some(show_bounds(lower, upper))),
        Node::Union(_) => ("union", None, None),
        Node::Intersection(_) => ("intersection", None, None),
        Node::Difference(..) => ("difference", None, None),
        Node::Check(_) => ("check on documents", None, None),
    }
}

fn show_test(test: &ValueTest) -> String {
    match test {
        ValueTest::Regex(pattern) => format!("/{}/", pattern.text()),
        ValueTest::Modulo { divisor, remainder } => format!("% {divisor} = {remainder}"),
        ValueTest::Any(tests) => {
            const SHOWN_MAX: usize = 3;
            let shown: Vec<String> = tests.iter().take(SHOWN_MAX).map(|(_, test)| show_test(test)).collect();
            let rest = tests.len().saturating_sub(SHOWN_MAX);
            let rest = if rest > 0 { format!(" or {rest} more") } else { String::new() };
            format!("{}{rest}", shown.join(" or "))
        }
    }
}

fn show_kinds(kinds: &[Presence]) -> String {
    if kinds.len() == 6 {
        return "of any kind".to_owned();
    }
    let names: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}").to_lowercase()).collect();
    names.join(", ")
}

fn show_keys(keys: &[Vec<u8>]) -> String {
    let shown: Vec<String> = keys.iter().take(8).map(|key| show_key(key)).collect();
    let rest = if keys.len() > 8 { format!(" and {} more", keys.len() - 8) } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

fn show_key(value_key: &[u8]) -> String {
    match whole_value(value_key) {
        Some(value) => shorten(&value.to_json()),
        None => match key::decode_string(value_key) {
            Ok((text, _)) => format!("\"{}…\" by hash", shorten(&String::from_utf8_lossy(&text.bytes))),
            Err(_) => "a value".to_owned(),
        },
    }
}

/// Displays a range of keys as the comparisons it was built from.
fn show_range(range: &KeyRange) -> String {
    let is_prefix =
        range.upper == crate::query::language::interval::successor(&range.lower) && whole_value(&range.lower).is_none();
    if let ([tag, bytes @ ..], true) = (range.lower.as_slice(), is_prefix) {
        if *tag == Tag::String as u8 && !bytes.is_empty() {
            let text = String::from_utf8_lossy(bytes).replace("\0\u{1}", "…");
            return format!("begins with \"{}\"", shorten(&text));
        }
        if let Some(kind) = key::kind_of(&range.lower) {
            return format!("any {kind}");
        }
    }
    let lower = show_bound(&range.lower, ">=", ">");
    let upper = show_bound(&range.upper, "<", "<=");
    [lower, upper].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// Displays a bound as a comparison with the adjacent value; `None` if the bound is between kinds.
fn show_bound(bound: &[u8], before: &str, after: &str) -> Option<String> {
    if let Some(value) = whole_value(bound) {
        return Some(format!("{before} {}", shorten(&value.to_json())));
    }
    if bound == KeyRange::of_scalars().lower {
        return None;
    }
    if let [tag, text @ .., 0, 2] = bound
        && *tag == Tag::String as u8
    {
        // A bound after all strings that were cut here.
        return Some(format!("{after} \"{}…\"", shorten(&String::from_utf8_lossy(text))));
    }
    let mut previous = bound.to_vec();
    let last = previous.last_mut()?;
    *last = last.checked_sub(1)?;
    whole_value(&previous).map(|value| format!("{after} {}", shorten(&value.to_json())))
}

fn whole_value(value_key: &[u8]) -> Option<Value> {
    let (value, length) = key::decode(value_key).ok()?;
    (length == value_key.len()).then_some(value)
}

fn show_bounds(lower: &Bound<String>, upper: &Bound<String>) -> String {
    let lower = match lower {
        Bound::Included(id) => Some(format!(">= \"{}\"", shorten(id))),
        Bound::Excluded(id) => Some(format!("> \"{}\"", shorten(id))),
        Bound::Unbounded => None,
    };
    let upper = match upper {
        Bound::Included(id) => Some(format!("<= \"{}\"", shorten(id))),
        Bound::Excluded(id) => Some(format!("< \"{}\"", shorten(id))),
        Bound::Unbounded => None,
    };
    [lower, upper].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// The estimate, displayed after the actual number.
fn expectation(estimated: Option<u64>) -> String {
    estimated.map_or_else(String::new, |estimated| format!(" (about {estimated} expected)"))
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// The text, truncated if it is long.
fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 80;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
