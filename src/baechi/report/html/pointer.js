// Wheel, drag, pinch, click and hover on a timeline.

// Two fingers: the moments under them stay under them. Returns whether a pinch goes on.
function pinchOf(timeline, place) {
  const fingers = new Map(); // where they are, by pointer
  let held = null; // the moments that were under two of them
  const xs = () => [...fingers.values()].sort((a, b) => a - b);
  const move = () => {
    const [left, right] = xs();
    if (right - left < 10) return;
    const span = ((held[1] - held[0]) * timeline.plotWidth) / (right - left);
    const begin = held[0] - ((left - GUTTER) / timeline.plotWidth) * span;
    timeline.store.view.show(begin, begin + span);
  };
  return (event) => {
    if (event.pointerType !== "touch") return false;
    if (event.type === "pointerdown" || fingers.has(event.pointerId)) fingers.set(event.pointerId, place(event)[0]);
    if (event.type === "pointerup" || event.type === "pointercancel") fingers.delete(event.pointerId);
    if (fingers.size !== 2) held = null;
    else if (held === null) held = xs().map((x) => timeline.moment(x));
    else move();
    return held !== null;
  };
}

function listenToPointer(timeline) {
  const {canvas, store} = timeline;
  let drag = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const pinch = pinchOf(timeline, place);
  const overviewMoment = (x) => ((x - GUTTER) / timeline.plotWidth) * store.view.limit * 1.02;

  canvas.addEventListener("wheel", (event) => {
    const {view} = store;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan(Math.sign(sideways) * Math.min(0.25, Math.abs(sideways) / 600));
      return;
    }
    if (event.deltaY > 0 && view.whole) return; // nothing left to zoom out of: the page scrolls
    event.preventDefault();
    const [x] = place(event);
    const steps = Math.max(-3, Math.min(3, event.deltaY / (event.deltaMode === 1 ? 3 : 100)));
    view.zoom(1.25 ** steps, Math.max(0, timeline.moment(Math.max(x, GUTTER))));
  }, {passive: false});

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    if (pinch(event)) {
      drag = null;
      hideTooltip();
      return;
    }
    const [x, y] = place(event);
    canvas.setPointerCapture(event.pointerId);
    drag = {x, y, moved: false, begin: store.view.begin, end: store.view.end, scroll: timeline.box.scrollTop, overview: y < OVERVIEW};
    if (drag.overview) {
      const half = (store.view.end - store.view.begin) / 2;
      const middle = overviewMoment(x);
      if (!store.view.whole) store.view.show(middle - half, middle + half);
    }
  });

  canvas.addEventListener("pointermove", (event) => {
    if (pinch(event)) return;
    const [x, y] = place(event);
    if (drag === null) {
      showTooltip(store, timeline.at(x, y), event.clientX, event.clientY);
      return;
    }
    drag.moved ||= Math.abs(x - drag.x) + Math.abs(y - drag.y) > 4;
    if (!drag.moved) return;
    hideTooltip();
    canvas.classList.add("dragging");
    if (drag.overview) {
      const a = overviewMoment(drag.x);
      const b = overviewMoment(x);
      store.view.show(Math.min(a, b), Math.max(a, b));
    } else {
      const shift = ((drag.x - x) / timeline.plotWidth) * (drag.end - drag.begin);
      timeline.box.scrollTop = drag.scroll + drag.y - y;
      store.view.show(drag.begin + shift, drag.end + shift);
    }
  });

  const release = (event) => {
    pinch(event);
    canvas.classList.remove("dragging");
    if (drag !== null && !drag.moved && event.type === "pointerup") {
      const [x, y] = place(event);
      const found = timeline.at(x, y);
      store.select(found !== null && found.device === undefined ? found : null);
    }
    drag = null;
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("dblclick", (event) => store.view.zoom(0.4, timeline.moment(place(event)[0])));
}
