//! A self-contained HTML page with all tables and inline plots.

use pulldown_cmark::{Options, Parser, html::push_html};

const STYLE: &str = "\
    body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:72rem;margin:2rem auto;padding:0 1rem}\
    table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto;font-variant-numeric:tabular-nums}\
    td,th{border:1px solid #ddd;padding:.2rem .5rem;text-align:left}th{background:#f4f4f4}\
    tr:nth-child(even){background:#fafafa}pre{background:#f4f4f4;padding:.6rem;overflow-x:auto}\
    svg{max-width:100%;height:auto;margin:.5rem 0}nav a{margin-right:1rem}\
    section{border-top:2px solid #222;margin-top:3rem}@media print{nav{display:none}section{break-before:page}}";

/// A section of the page.
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) markdown: String,
    /// SVG texts of the plots, by file name.
    pub(super) plots: Vec<(String, String)>,
}

/// Returns the page.
pub(super) fn page(sections: &[Section]) -> String {
    let links: String = sections.iter().map(|Section { name, .. }| format!("<a href=\"#{name}\">{name}</a>")).collect();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Stemma: benchmarks</title><style>{STYLE}</style></head><body>\n<nav>{links}</nav>\n"
    );
    for Section { name, markdown, plots } in sections {
        page.push_str(&format!("<section id=\"{name}\">\n{}</section>\n", with_plots(&to_html(markdown), plots)));
    }
    page.push_str("</body></html>\n");
    page
}

fn to_html(markdown: &str) -> String {
    let mut html = String::new();
    push_html(&mut html, Parser::new_ext(markdown, Options::ENABLE_TABLES));
    html
}

/// Replaces each reference to a plot's file with its SVG.
fn with_plots(html: &str, plots: &[(String, String)]) -> String {
    let mut html = html.to_owned();
    for (name, svg) in plots {
        let file = format!("plots/{name}.svg");
        while let Some(at) = html.find(&format!("<img src=\"{file}\"")) {
            let end = html[at..].find("/>").map_or(html.len(), |end| at + end + 2);
            html.replace_range(at..end, svg);
        }
    }
    html
}
