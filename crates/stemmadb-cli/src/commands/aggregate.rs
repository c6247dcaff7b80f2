//! `stemma aggregate`: counts, sums and other figures of the documents that match, as a whole or by group, and
//! aggregation pipelines.

use stemmadb::{Object, Value};

use super::{Session, argument, selector};
use crate::arguments::Aggregate;
use crate::failure::{self, Result};
use crate::output::{OutputFormat, Printer};
use crate::shell::interrupt;

/// Prints a row for each group: its values, then its figures.
pub(super) fn run(aggregate: &Aggregate, session: Session<'_>) -> Result<()> {
    if let Some(stages) = &aggregate.pipeline {
        return run_pipeline(aggregate, stages, session);
    }
    let request = request(aggregate)?;
    let (rows, hints) = session
        .with_past(&aggregate.database, aggregate.past, |db| db.aggregate(&request, aggregate.timeout.timeout))?;
    print(aggregate, rows)?;
    hints.into_iter().for_each(failure::hint);
    Ok(())
}

/// Prints the rows of groups.
pub(super) fn print(aggregate: &Aggregate, rows: Vec<(Value, Object)>) -> Result<()> {
    let mut printer = Printer::new(OutputFormat::choose(aggregate.output, OutputFormat::Table));
    for (group, figures) in rows {
        let values = match group {
            Value::Array(values) if aggregate.group_by.len() > 1 => values,
            value => vec![value],
        };
        let mut row: Object = aggregate.group_by.iter().map(String::as_str).zip(values).collect();
        figures.into_iter().for_each(|(name, value)| {
            row.insert(name, value);
        });
        printer.row(row)?;
    }
    printer.flush()
}

/// Prints the rows of a pipeline, or how it would run.
fn run_pipeline(aggregate: &Aggregate, stages: &str, session: Session<'_>) -> Result<()> {
    let (selector, stages) = (selector(&aggregate.selector)?, argument("pipeline", stages)?);
    let on_terminal = if aggregate.explain { OutputFormat::PrettyJson } else { OutputFormat::Table };
    let mut printer = Printer::new(OutputFormat::choose(aggregate.output, on_terminal));
    session.with_past(&aggregate.database, aggregate.past, |db| {
        let run = db.pipeline(&selector, &stages)?;
        if aggregate.explain {
            printer.row(run.explain()?)?;
            return printer.flush();
        }
        for row in run.rows()? {
            printer.row(row?)?;
            interrupt::check()?;
        }
        printer.flush()?;
        run.hints()?.into_iter().for_each(failure::hint);
        Ok(())
    })
}

/// The aggregation as JSON, with figures named like `sum(price)`.
pub(super) fn request(aggregate: &Aggregate) -> Result<Value> {
    let functions = [
        ("sum", &aggregate.sum),
        ("average", &aggregate.average),
        ("min", &aggregate.min),
        ("max", &aggregate.max),
        ("distinct", &aggregate.distinct),
        ("count_distinct", &aggregate.count_distinct),
    ];
    let mut figures = Object::new();
    if aggregate.count || functions.iter().all(|(_, paths)| paths.is_empty()) {
        figures.insert("count", "count");
    }
    for (function, paths) in functions {
        for path in paths {
            let figure: Object = [(function, Value::from(path))].into_iter().collect();
            figures.insert(format!("{function}({path})"), figure);
        }
    }
    let mut request = Object::new();
    request.insert("selector", selector(&aggregate.selector)?);
    request.insert("figures", figures);
    if !aggregate.group_by.is_empty() {
        request.insert("group_by", aggregate.group_by.iter().map(Value::from).collect::<Vec<_>>());
    }
    if let Some(figure) = &aggregate.order_by {
        request.insert("order_by", figure);
    }
    request.insert("descending", aggregate.descending);
    request.insert("skip", aggregate.skip.unwrap_or(0));
    if let Some(limit) = aggregate.limit {
        request.insert("limit", limit);
    }
    Ok(Value::Object(request))
}
