// The address holds the whole view: #/VIEW?parameters.

export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", parameters: new URLSearchParams(query) };
}

// An address from a view and its parameters, of which empty ones are left out.
export function address(view, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of [value].flat()) {
      if (each !== undefined && each !== null && each !== "" && each !== false) {
        query.append(name, each);
      }
    }
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

// Change some parameters of the view; null removes one. A new entry of the history only on `push`.
export function change(changes, { push = false } = {}) {
  const { view, parameters } = route();
  const values = {};
  for (const name of parameters.keys()) values[name] = parameters.getAll(name);
  const place = address(view, { ...values, ...changes });
  if (place === location.hash) return;
  if (push) location.hash = place;
  else {
    history.replaceState(null, "", place);
    window.dispatchEvent(new Event("hashchange"));
  }
}
