// The request as a command or program to copy.

const LONG = 400; // characters of an input that a snippet shows as it is

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

export const SNIPPETS = {
  curl(url, body, hasToken) {
    const head = hasToken ? `  -H "Authorization: Bearer $TOKEN" \\\n` : "";
    return `curl -s ${quoted(url)} \\\n  -H 'Content-Type: application/json' \\\n${head}  -d @- <<'END'\n${body}\nEND`;
  },
  Python(url, body, hasToken) {
    const head = hasToken ? `, "Authorization": "Bearer " + os.environ["TOKEN"]` : "";
    return `import json${hasToken ? ", os" : ""}, urllib.request

body = ${JSON.stringify(body)}
request = urllib.request.Request(
    ${JSON.stringify(url)}, body.encode(), {"Content-Type": "application/json"${head}}
)
print(json.load(urllib.request.urlopen(request))["output"])`;
  },
  JavaScript(url, body, hasToken) {
    const head = hasToken ? `, Authorization: \`Bearer \${token}\`` : "";
    return `const response = await fetch(${JSON.stringify(url)}, {
  method: "POST",
  headers: { "Content-Type": "application/json"${head} },
  body: ${JSON.stringify(body)},
});
console.log((await response.json()).output);`;
  },
};

// The snippet as it is shown: long inputs are cut there, and whole in what is copied.
export function shortened(snippet) {
  return snippet.replace(/(data:[^,"]{0,200},[^"\\]{40})[^"\\]{400,}/g, "$1…").slice(0, 20 * LONG);
}
