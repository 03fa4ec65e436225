// Preact, htm and signals, put together: a view is drawn again when a signal that it read changes.

import { Component, Fragment, h, render } from "../vendor/preact.module.js";
import htm from "../vendor/htm.module.js";
import { batch, computed, effect, signal } from "../vendor/signals-core.js";

export { Component, Fragment, batch, computed, effect, h, render, signal };
export const html = htm.bind(h);

/** A component made of a function from props to markup; it follows the signals that it reads. */
export function view(draw) {
  return class extends Component {
    render(props) {
      this.stop?.();
      let result;
      let first = true;
      this.stop = effect(() => {
        if (first) {
          result = draw(props);
          first = false;
        } else {
          this.setState({});
        }
      });
      return result;
    }

    componentWillUnmount() {
      this.stop?.();
    }
  };
}
