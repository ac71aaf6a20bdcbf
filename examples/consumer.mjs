// A consumer of a pull type in Node 18 or later, without packages:
//   TOC_URL=https://toc.example.com TOC_TOKEN=toc_... node consumer.mjs order.close
const url = process.env.TOC_URL ?? "http://127.0.0.1:8440";
const types = process.argv.slice(2);
const headers = { "Content-Type": "application/json" };
if (process.env.TOC_TOKEN) headers.Authorization = `Bearer ${process.env.TOC_TOKEN}`;
let running = true;
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => (running = false));

async function call(path, body) {
  const response = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  const answer = await response.json();
  if (response.ok) return answer;
  const error = new Error(`${answer.code}: ${answer.detail}`);
  error.retryAfter = Number(response.headers.get("Retry-After"));
  throw error;
}

async function handle(job) {
  console.log("closing", job.biz_id, JSON.stringify(job.payload), "attempt", job.attempt);
}

while (running) {
  try {
    const { leases } = await call("/v1/leases", { types, max: 10, wait_s: 20 });
    const done = [], failed = [];
    for (const job of leases) {
      const { job_id, token } = job;
      await handle(job).then(
        () => done.push({ job_id, token }),
        (error) => failed.push({ job_id, token, reason: String(error).slice(0, 1000) }));
    }
    if (done.length) await call("/v1/leases:finish", { items: done });
    if (failed.length) await call("/v1/leases:fail", { items: failed });
  } catch (error) {
    if (error.retryAfter === 0) throw error; // the call is wrong: trying again would not help
    console.error(String(error));
    await new Promise((resolve) => setTimeout(resolve, 1000 * (error.retryAfter || 1)));
  }
}
