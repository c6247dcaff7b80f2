//! SVG plots: adjacent panels with lines or steps, linear or logarithmic axes, and a shared legend.
//!
//! Series differ in color (Okabe and Ito's palette, safe for color blindness), dashes and markers, so that they remain
//! distinguishable in gray. The background is always white. Text is set in the reader's own sans-serif font.

use std::fmt::Write as _;

/// A plot: panels that share a legend.
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
}

/// One coordinate system.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// An axis of a panel.
#[derive(Clone)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) scale: Scale,
    /// The smallest and largest value shown.
    pub(crate) range: (f64, f64),
    /// Explicit tick values; empty for round values.
    pub(crate) ticks: Vec<f64>,
}

/// The axis scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    Linear,
    /// Logarithmic; for positive values.
    Logarithmic,
}

/// One contender's data. Series with the same name have the same style in every panel.
pub(crate) struct Series {
    pub(crate) name: String,
    /// By ascending x.
    pub(crate) points: Vec<(f64, f64)>,
    /// Whether each point holds until the next one, as in a histogram; otherwise points are marked and connected.
    pub(crate) is_steps: bool,
}

const PANEL_WIDTH: f64 = 240.0;
const PANEL_HEIGHT: f64 = 200.0;
/// Margins of a panel for its title and axes.
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 46.0;
/// Height above the panels for the title and the legend.
const HEADER: f64 = 56.0;
const LEGEND_ITEM: f64 = 160.0;
/// Approximate maximum width of a title character.
const TITLE_LETTER: f64 = 9.5;
const LEGEND_LINE: f64 = 18.0;

/// Colors and dash patterns of the series, in legend order.
const STYLES: [(&str, &str); 8] = [
    ("#0072B2", ""),
    ("#D55E00", "7 3"),
    ("#009E73", "2 2"),
    ("#CC79A7", "9 3 2 3"),
    ("#E69F00", "4 4"),
    ("#000000", "1 3"),
    ("#56B4E9", "12 3"),
    ("#7F7F7F", "5 2 1 2"),
];

impl Figure {
    /// Returns the SVG text.
    pub(crate) fn to_svg(&self) -> String {
        let names = self.names();
        let title_width = LEFT + self.title.chars().count() as f64 * TITLE_LETTER;
        let panels_width = self.panels.len() as f64 * (LEFT + PANEL_WIDTH + RIGHT);
        let width = panels_width.max(LEFT + 2.0 * LEGEND_ITEM).max(title_width);
        let a_line = (((width - LEFT) / LEGEND_ITEM) as usize).max(1);
        let header = HEADER + (names.len().div_ceil(a_line).max(1) - 1) as f64 * LEGEND_LINE;
        let height = header + TOP + PANEL_HEIGHT + BOTTOM;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n",
            title = escaped(&self.title)
        );
        for (at, name) in names.iter().enumerate() {
            let (x, y) = (LEFT + (at % a_line) as f64 * LEGEND_ITEM, 42.0 + (at / a_line) as f64 * LEGEND_LINE);
            line(&mut svg, at, &[(x, y), (x + 26.0, y)]);
            mark(&mut svg, at, x + 13.0, y);
            text(&mut svg, x + 32.0, y + 4.0, "start", name);
        }
        for (at, panel) in self.panels.iter().enumerate() {
            let left = LEFT + at as f64 * (LEFT + PANEL_WIDTH + RIGHT);
            panel.draw(&mut svg, left, header + TOP, &names);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Returns each series name once, in order of appearance.
    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64, top: f64, names: &[&str]) {
        let (right, bottom) = (left + PANEL_WIDTH, top + PANEL_HEIGHT);
        text(svg, left + PANEL_WIDTH / 2.0, top - 8.0, "middle", &self.title);
        for tick in self.x.ticks() {
            let x = left + PANEL_WIDTH * self.x.position(tick);
            rule(svg, (x, top), (x, bottom));
            text(svg, x, bottom + 15.0, "middle", &label(tick));
        }
        for tick in self.y.ticks() {
            let y = bottom - PANEL_HEIGHT * self.y.position(tick);
            rule(svg, (left, y), (right, y));
            text(svg, left - 6.0, y + 4.0, "end", &label(tick));
        }
        text(svg, left + PANEL_WIDTH / 2.0, bottom + 34.0, "middle", &self.x.label);
        let middle = top + PANEL_HEIGHT / 2.0;
        push(
            svg,
            format_args!(
                "<text transform=\"translate({:.1} {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                left - 46.0,
                escaped(&self.y.label)
            ),
        );
        push(
            svg,
            format_args!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\" \
                 fill=\"none\" stroke=\"#666\"/>\n"
            ),
        );
        let point =
            |(x, y): (f64, f64)| (left + PANEL_WIDTH * self.x.position(x), bottom - PANEL_HEIGHT * self.y.position(y));
        for series in &self.series {
            let style = names.iter().position(|name| *name == series.name).unwrap_or(0);
            let points: Vec<(f64, f64)> = series.points.iter().copied().map(point).collect();
            match series.is_steps {
                true => line(svg, style, &steps(&points, bottom)),
                false => {
                    line(svg, style, &points);
                    points.iter().for_each(|(x, y)| mark(svg, style, *x, *y));
                }
            }
        }
    }
}

impl Axis {
    /// Maps a value to 0..=1, clamped to the range.
    fn position(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        let share = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Logarithmic => (value / low).log10() / (high / low).log10(),
        };
        share.clamp(0.0, 1.0)
    }

    /// Returns round values within the range: powers of ten (with their multiples by 2 and 5 if there are few), or
    /// about five equidistant values.
    fn ticks(&self) -> Vec<f64> {
        if !self.ticks.is_empty() {
            return self.ticks.clone();
        }
        let (low, high) = self.range;
        // Computed values may fall slightly short of the end.
        let within = |tick: &f64| (low - 1e-9 * high.abs()..=high * (1.0 + 1e-9)).contains(tick);
        if self.scale == Scale::Logarithmic {
            let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
            let factors: &[f64] = if exponents.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let ticks = exponents.flat_map(|exponent| factors.iter().map(move |factor| factor * 10f64.powi(exponent)));
            return ticks.filter(within).collect();
        }
        let step = round_step((high - low) / 5.0);
        let first = (low / step).ceil() as i64;
        (first..).map(|number| number as f64 * step).take_while(|tick| within(tick)).collect()
    }
}

/// Returns the next 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * (1.0 - 1e-9)).unwrap_or(10.0);
    factor * power
}

/// Returns a histogram's outline, starting and ending at the baseline.
fn steps(points: &[(f64, f64)], ground: f64) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let mut outline = vec![(first.0, ground)];
    for (at, (x, y)) in points.iter().enumerate() {
        outline.push((*x, *y));
        outline.extend(points.get(at + 1).map(|next| (next.0, *y)));
    }
    outline.push((last.0, ground));
    outline
}

fn label(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    match value.abs() {
        large if large >= 1e6 => format!("{}M", shortest(value / 1e6)),
        large if large >= 1e4 => format!("{}k", shortest(value / 1e3)),
        _ => shortest((value * 10f64.powf(3.0 - digits)).round() / 10f64.powf(3.0 - digits)),
    }
}

fn shortest(value: f64) -> String {
    format!("{value}")
}

fn push(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("a string takes everything");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    push(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escaped(words)));
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    push(svg, format_args!("<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#e4e4e4\"/>\n"));
}

fn line(svg: &mut String, style: usize, points: &[(f64, f64)]) {
    let (color, dashes) = STYLES[style % STYLES.len()];
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    push(
        svg,
        format_args!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>\n",
            path.join("L")
        ),
    );
}

/// Draws a marker: disc, square, triangle, diamond, ring, cross, leaf, or inverted triangle.
fn mark(svg: &mut String, style: usize, x: f64, y: f64) {
    let (color, _) = STYLES[style % STYLES.len()];
    let shape = match style % STYLES.len() {
        1 => "M-4 -4H4V4H-4Z",
        2 => "M0 -5L5 4H-5Z",
        3 => "M0 -5L5 0L0 5L-5 0Z",
        4 => "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0M-2 0A2 2 0 1 0 2 0A2 2 0 1 0 -2 0",
        6 => "M-5 0L0 -2L5 0L0 2Z",
        7 => "M0 5L5 -4H-5Z",
        5 => "M-4 -1H-1V-4H1V-1H4V1H1V4H-1V1H-4Z",
        _ => "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0",
    };
    push(svg, format_args!("<path transform=\"translate({x:.1} {y:.1})\" d=\"{shape}\" fill=\"{color}\"/>\n"));
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, low: f64, high: f64) -> Axis {
        Axis { label: "x".to_owned(), scale, range: (low, high), ticks: Vec::new() }
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(axis(Scale::Logarithmic, 1.0, 1e5).ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(axis(Scale::Logarithmic, 10.0, 200.0).ticks(), [10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(axis(Scale::Linear, 0.0, 4.0).ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(axis(Scale::Linear, 0.0, 0.3).ticks().len(), 4);
        assert_eq!(axis(Scale::Logarithmic, 1.0, 100.0).position(10.0), 0.5);
        let labels: Vec<String> = [0.0, 0.30000000000000004, 5.0, 2_000.0, 20_000.0, 3e6].map(label).to_vec();
        assert_eq!(labels, ["0", "0.3", "5", "2000", "20k", "3M"]);
    }

    #[test]
    fn figures_name_each_series_once_and_escape_text() {
        let series =
            |name: &str| Series { name: name.to_owned(), points: vec![(1.0, 1.0), (2.0, 3.0)], is_steps: true };
        let panel = || Panel {
            title: "one".to_owned(),
            x: axis(Scale::Linear, 0.0, 2.0),
            y: axis(Scale::Linear, 0.0, 4.0),
            series: vec![series("a < b"), series("c")],
        };
        let svg = Figure { title: "a & b".to_owned(), panels: vec![panel(), panel()] }.to_svg();
        assert_eq!(svg.matches("a &lt; b").count(), 1);
        assert!(svg.contains("<title>a &amp; b</title>") && svg.ends_with("</svg>\n"));
        // Two in the legend, four in the panels.
        assert_eq!(svg.matches("stroke-width").count(), 6);
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn histogram_outlines_start_and_end_at_the_baseline() {
        assert_eq!(steps(&[(1.0, 5.0), (2.0, 9.0)], 9.0), [(1.0, 9.0), (1.0, 5.0), (2.0, 5.0), (2.0, 9.0), (2.0, 9.0)]);
    }
}
