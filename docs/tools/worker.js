// Search runs in a worker, which browsers refuse to pages that are opened from a disk. There, a hidden frame
// stands in for it: it runs the same script, and messages go to and fro as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.ready = new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => done(inside);
        script.onerror = failed;
        inside.document.head.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then((inside) =>
        inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      );
    }

    terminate() {}
  };
}
