//! Line charts as SVG, for the figures of the documentation.

use std::fmt::Write;

/// A named line of (x, y).
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by ascending x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 60.0;
/// Colours that the colour-blind can distinguish (Okabe and Ito).
const COLOURS: [&str; 7] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Draws the lines over a logarithmic x axis with a tick at each point of the first line.
pub fn svg(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let xs = || series.iter().flat_map(|s| s.points.iter().map(|p| p.0.ln()));
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    let top = series.iter().flat_map(|s| s.points.iter().map(|p| p.1)).fold(0.0, f64::max) * 1.05;
    let x = |value: f64| MARGIN + (value.ln() - low) / (high - low).max(f64::MIN_POSITIVE) * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN - value / top.max(f64::MIN_POSITIVE) * (HEIGHT - 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut text = |at: (f64, f64), anchor: &str, content: &str| {
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{content}</text>", at.0, at.1);
    };
    text((WIDTH / 2.0, MARGIN / 2.0), "middle", title);
    text((WIDTH / 2.0, HEIGHT - MARGIN / 4.0), "middle", x_label);
    text((MARGIN / 4.0, MARGIN * 0.8), "start", y_label);
    for (value, _) in series.first().map_or(&[][..], |s| &s.points) {
        text((x(*value), HEIGHT - MARGIN * 0.7), "middle", &format!("{value}"));
    }
    for i in 0..=4 {
        let value = top * f64::from(i) / 4.0;
        text((MARGIN - 6.0, y(value) + 4.0), "end", &format!("{value:.1}"));
    }
    for (i, line) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<_> = line.points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        );
        let below = MARGIN + 18.0 * (i as f64 + 1.0);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{below}\" fill=\"{colour}\">{}</text>", MARGIN + 12.0, line.name);
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extremes_lie_in_the_corners() {
        let line = Series { name: "a".into(), points: vec![(10.0, 0.0), (1000.0, 20.0)] };
        let svg = svg("t", "x", "y", &[line]);
        assert!(svg.contains(&format!("points=\"60.0,340.0 580.0,{:.1}\"", 340.0 - 280.0 / 1.05)), "{svg}");
    }
}
