"use strict";
document.querySelectorAll("figure.plot").forEach(function (figure) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const canvas = figure.querySelector(".canvas");
  const choices = figure.querySelector(".choices");

  function choice(name, label, options) {
    const select = document.createElement("select");
    select.name = name;
    options.forEach(function (option) { select.add(new Option(option[1], option[0])); });
    select.addEventListener("change", draw);
    if (options.length > 1 || name === "dataset") {
      const around = document.createElement("label");
      around.append(label, select);
      choices.append(around);
    }
    return select;
  }
  function named(options, key) {
    return options.find(function (option) { return option[0] === key; })[1];
  }
  function rgba(colour, alpha) {
    const part = [1, 3, 5].map(function (i) { return parseInt(colour.slice(i, i + 2), 16); });
    return "rgba(" + part.join(",") + "," + alpha + ")";
  }
  // Plotly reads a little HTML in names; ours are text
  function text(s) { return s.replace(/&/g, "&amp;").replace(/</g, "&lt;"); }

  const names = Object.keys(data.curves);
  const dataset = choice("dataset", "data set", names.map(function (d) { return [d, d]; }));
  const value = choice("value", "value", data.values);
  const axis = choice("axis", "against", data.axes);

  function draw() {
    const traces = [], seen = [], ends = [], band = [], line = [];
    const curves = data.curves[dataset.value] || [];
    data.methods.forEach(function (method, place) {
      const curve = curves.find(function (c) { return c.method === place; });
      const x = [], y = [], edgeX = [], high = [], low = [];
      const xs = curve && curve[axis.value], ys = curve && curve[value.value];
      if (xs && ys) {
        ends.push(xs.reduce(function (a, b) { return b === null ? a : Math.max(a, b); }, 0));
        xs.forEach(function (at, i) {
          const mean = ys[0][i], late = data.kind !== "curves" || i >= xs.length / 5;
          if (at === null) { return; }
          x.push(at);
          y.push(mean);
          if (mean !== null && late) { seen.push(mean); }
          if (ys.length < 3 || ys[1][i] === null) { return; }
          edgeX.push(at);
          low.push(ys[1][i]);
          high.push(ys[2][i]);
          if (late) { seen.push(ys[1][i], ys[2][i]); }
        });
      }
      const here = y.some(function (v) { return v !== null; });
      const shared = { type: "scatter", mode: "lines", legendgroup: String(place) };
      if (data.kind === "curves") {
        band.push(Object.assign({}, shared, {
          uid: "band" + place, x: edgeX.concat(edgeX.slice().reverse()),
          y: high.concat(low.reverse()), fill: "toself", fillcolor: rgba(method.colour, 0.16),
          line: { width: 0 }, hoverinfo: "skip", showlegend: false
        }));
      }
      line.push(Object.assign({}, shared, {
        uid: "line" + place, name: text(method.name), x: x, y: y, showlegend: here,
        line: { color: method.colour, width: 2, dash: method.dash },
        hovertemplate: "%{y:.4g}"
      }));
    });
    traces.push.apply(traces, band.concat(line));
    const state = [dataset.value, value.value, axis.value].join("|");
    const yaxis = { title: { text: named(data.values, value.value) }, uirevision: state,
      zeroline: false, automargin: true, exponentformat: "power" };
    if (seen.length) {
      const low = Math.min.apply(null, seen), high = Math.max.apply(null, seen);
      const pad = 0.05 * (high - low) || 0.05 * Math.abs(high) || 1;
      yaxis.range = [data.kind === "curves" ? low - pad : 0, high + pad];
    }
    const xaxis = { title: { text: named(data.axes, axis.value) }, uirevision: state,
      zeroline: false, automargin: true, exponentformat: "none", separatethousands: true,
      hoverformat: axis.value === "step" ? ",d" : ".3g" };
    if (data.kind === "curves" && ends.length) {
      xaxis.range = [0, 1.01 * Math.max.apply(null, ends)];
    }
    Plotly.react(canvas, traces, {
      xaxis: xaxis, yaxis: yaxis, hovermode: data.kind === "curves" ? "x unified" : "closest",
      legend: { uirevision: "kept", orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      margin: { l: 70, r: 20, t: 20, b: 55 }, showlegend: true,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#99a1aa", activecolor: "#14699b" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13 }
    }, {
      // Plotly's own set of buttons has one that sends the chart to its server
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "autoScale2d", "resetScale2d"]],
      showSendToCloud: false, plotlyServerURL: "", displaylogo: false, responsive: true
    });
  }
  draw();
  // a page of paper is narrower than the window
  window.addEventListener("beforeprint", function () { Plotly.relayout(canvas, { width: 680 }); });
  window.addEventListener("afterprint", function () {
    Plotly.relayout(canvas, { width: null, autosize: true });
  });
});
