//! Draws the figures: three panels, logarithmic both ways, one colour a strategy.

use crate::Line;
use crate::common::Res;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (1380, 430);
/// Told apart by those who see colours otherwise, too (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
];

/// The names of the lines stand above the highest of them.
const ROOM_FOR_NAMES: f64 = 3.0;

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a panel says beside its lines, and the base of its horizontal scale.
struct Words<'a> {
    title: &'a str,
    across: &'a str,
    base: f64,
    up: &'a str,
}

/// Writes an SVG of the latencies and of the rates, each with its title.
pub(crate) fn draw(path: &Path, latency: &[Line], rates: &[(&str, Vec<Line>)]) -> Res<()> {
    drawn(path, latency, rates).map_err(|e| format!("drawing {}: {e}", path.display()))
}

fn drawn(path: &Path, latency: &[Line], rates: &[(&str, Vec<Line>)]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((1, 1 + rates.len()));
    let words =
        Words { title: "One rename", across: "files below what moves", base: 10.0, up: "microseconds" };
    panel(&panels[0], latency, &words)?;
    for (at, (title, lines)) in panels[1..].iter().zip(rates) {
        let title = format!("Renamers, {title}");
        panel(
            at,
            lines,
            &Words { title: &title, across: "renamers at once", base: 2.0, up: "renames a second" },
        )?;
    }
    root.present()?;
    Ok(())
}

fn panel(area: &Panel<'_>, lines: &[Line], words: &Words<'_>) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = range(points().map(|(x, _)| *x as f64), 1.3);
    let up = range(points().map(|(_, y)| *y), ROOM_FOR_NAMES);
    let mut chart = ChartBuilder::on(area)
        .caption(words.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(66)
        .build_cartesian_2d(across.log_scale().base(words.base), up.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(words.across)
        .y_desc(words.up)
        .label_style(("sans-serif", 16))
        .axis_desc_style(("sans-serif", 17))
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<(f64, f64)> = line.points.iter().map(|(x, y)| (*x as f64, *y)).collect();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(&line.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 16))
        .draw()?;
    Ok(())
}

/// A little more than the values take; above them as many times as much as `room` says.
fn range(values: impl Iterator<Item = f64>, room: f64) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, 1.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    let low = low.clamp(0.001, high);
    low / 1.3..high * room
}

/// 1, 10, 1 k, 10 k, 1 M.
fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => v.to_string(),
    }
}
