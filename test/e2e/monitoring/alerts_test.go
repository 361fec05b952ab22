// SPDX-License-Identifier: Apache-2.0

//go:build linux && !race && !e2e

package monitoring

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/promtest"
)

// patience bounds the wait for alerts: only a failure takes that long.
const patience = 3 * time.Minute

// form is one way in which published rules alert on an error of a GPU.
type form struct{ name, expr string }

// onLoss are rules that must become alerts after XID 79 and the loss of GPU 3 of a node, and of GPU 2, which is cut into
// instances. Rules that only look at the present are held for some seconds, as published ones are for a minute.
func onLoss(node string) []form {
	with := func(metric, more string) string { return fmt.Sprintf(`%s{job=%q,gpu="3"%s}`, metric, node, more) }
	xid := with("DCGM_FI_DEV_XID_ERRORS", "")
	forms := []form{
		{"AnyXID", xid + " > 0"},
		{"XIDByValue", xid + " == 79"},
		{"XIDByLabel", with("DCGM_FI_DEV_XID_ERRORS", `,err_code=~"48|79|95"`)},
		{"XIDOfPods", `count by (job, gpu) (` + xid + ` != 0)`},
		{"XIDCount", with("DCGM_EXP_XID_ERRORS_COUNT", `,xid="79"`) + " > 0"},
		{"HealthFails", with("DCGM_EXP_GPU_HEALTH_STATUS", `,health_watch="ALL"`) + " >= 20"},
		{"ECC", with("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "") + " > 0"},
		{"RemapFailed", with("DCGM_FI_DEV_ROW_REMAP_FAILURE", "") + " == 1"},
		{"XIDOfInstances", fmt.Sprintf(`count by (job) (DCGM_FI_DEV_XID_ERRORS{job=%q,gpu="2",GPU_I_ID!=""} == 79) == 2`, node)},
	}
	if strings.HasPrefix(node, "dcgm") {
		forms = append(forms,
			form{"SwitchFails", fmt.Sprintf(`max by (job) (DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{job=%q}) > 0`, node)},
			form{"LinkErrors", fmt.Sprintf(`max by (job) (DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS{job=%q,nvlink!=""}) > 0`, node)})
	}
	return forms
}

// The error that takes a GPU away must not take away the series that alerts look at: each form of rule fires while the
// GPU is lost, hangs, or has lost its driver, with NVML and with DCGM.
func TestAlertsOnALostGPU(t *testing.T) {
	t.Parallel()
	promtest.Program(t, "prometheus")
	const bin = "../../../bin"
	collectors := filepath.Join(t.TempDir(), "collectors.csv")
	var csv strings.Builder
	for _, name := range []string{
		"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
		"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", "DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS",
	} {
		fmt.Fprintf(&csv, "%s, gauge, x\n", name)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(collectors, []byte(csv.String()), 0o600))

	const errors = "gpus 4\ngpu 3 ecc_dbe_vol 2\ngpu 3 remap_failure 1\ngpu 2 mig 1g.18gb 2\n"
	type place struct {
		job, fallen, after string
		library            *agentrig.Library
		agent              *agentrig.Agent
	}
	var places []*place
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [RULES]\nscrape_configs:\n"
	rules := "groups:\n- name: published\n  rules:\n"
	for name, library := range map[string]func(bin, dir string) *agentrig.Library{"nvml": agentrig.NVML, "dcgm": agentrig.DCGM} {
		for fault, line := range map[string]string{"lost": "gpu 3 lost\n", "hung": "gpu 3 hang 600000\n", "reset": "gpu 3 detached\n", "driver": "driver not-loaded\n"} {
			if name == "nvml" {
				line = strings.Replace(line, "gpu 3 detached\n", resetRequired, 1)
			}
			before := errors
			if name == "dcgm" {
				before += "switches 1\nlinks 2\npart nvswitch 0 856 20034\npart nvlink switch0:1 787 7\n"
			}
			fallen := before + "gpu 3 xid 79\ngpu 2 xid 79\n"
			p := &place{job: name + "-" + fault, fallen: fallen, after: fallen + line, library: library(bin, t.TempDir())}
			if strings.Contains(line, "gpu 3") {
				p.after += strings.ReplaceAll(line, "gpu 3", "gpu 2")
			}
			must(p.library.Set(before))
			agent, err := agentrig.Start(t.Context(), agentrig.Config{
				Binary: filepath.Join(bin, "gpupilot-agent"), Env: p.library.Env(), Args: append(p.library.Args(), "-f", collectors),
			})
			must(err)
			t.Cleanup(func() { _ = agent.Stop() })
			p.agent = agent
			places = append(places, p)
			config += fmt.Sprintf("- {job_name: %s, honor_labels: true, static_configs: [{targets: [%q]}]}\n", p.job, strings.TrimPrefix(agent.URL, "http://"))
			for _, f := range onLoss(p.job) {
				rules += fmt.Sprintf("  - {alert: %s, expr: %q, for: 12s}\n", f.name, f.expr)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(os.WriteFile(file, []byte(rules), 0o600))
	prometheus := promtest.Start(t, strings.Replace(config, "RULES", file, 1))

	for _, p := range places {
		must(p.agent.Await(t.Context(), patience, func(page string) bool {
			return strings.Contains(page, "\nDCGM_FI_DEV_GPU_TEMP{gpu=\"3\"") && strings.Count(page, "\nDCGM_FI_DEV_XID_ERRORS{") == 5 &&
				strings.Contains(page, "\nDCGM_FI_DEV_NVSWITCH_FATAL_ERRORS{") == (p.library.Backend == "dcgm")
		}))
		// The driver takes a moment to tell of the error before it is gone itself.
		if strings.Contains(p.after, "driver not-loaded") {
			must(p.library.Set(p.fallen))
			must(p.agent.Await(t.Context(), patience, func(page string) bool { return strings.Contains(page, `err_code="79"`) }))
		}
		must(p.library.Set(p.after))
	}
	for _, p := range places {
		must(p.agent.Await(t.Context(), patience, func(page string) bool { return !strings.Contains(page, "\nDCGM_FI_DEV_GPU_TEMP{gpu=\"3\"") }))
	}
	deadline := time.After(patience)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var silent []string
		firing := alerts(t, prometheus)
		for _, p := range places {
			for _, f := range onLoss(p.job) {
				if !slices.Contains(firing, f.name+" "+p.job) {
					silent = append(silent, f.name+" "+p.job)
				}
			}
		}
		if len(silent) == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("alerts that do not fire: %q", silent)
		case <-tick.C:
		}
	}
}

// first are rules that compare with the past. Each must see the first XID, the first error of an NVLink and the first
// thermal slowdown of GPU 1. hidden are errors that a later harmless code must not hide.
var (
	first = []string{
		`increase(gpupilot_gpu_xid_errors_total[2m]) > 0`,
		`rate(gpupilot_gpu_nvlink_errors_total[2m]) > 0`,
		`increase(DCGM_EXP_XID_ERRORS_TOTAL{xid="79"}[2m]) > 0`,
		`sum by (gpu) (rate(DCGM_EXP_XID_ERRORS_TOTAL[2m])) > 0`,
		`increase(DCGM_EXP_CLOCK_EVENTS_TOTAL{clock_event="hw_thermal"}[2m]) > 0`,
		`changes(max by (gpu) (DCGM_FI_DEV_XID_ERRORS)[2m:1s]) > 0`,
		`delta(max by (gpu) (DCGM_FI_DEV_XID_ERRORS)[2m:1s]) > 0`,
		`max by (gpu) (DCGM_FI_DEV_XID_ERRORS) - max by (gpu) (DCGM_FI_DEV_XID_ERRORS offset 20s) > 0`,
		`DCGM_FI_DEV_XID_ERRORS > 0 unless DCGM_FI_DEV_XID_ERRORS offset 20s`,
		`delta(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL[2m]) > 0`,
		// The panel of our dashboard.
		`gpupilot_xid_errors_total unless last_over_time(gpupilot_xid_errors_total[1h] offset 20s) or increase(gpupilot_xid_errors_total[20s])`,
	}
	hidden = []string{
		`present_over_time(DCGM_FI_DEV_XID_ERRORS{err_code="79"}[2m]) > 0`,
		`time() - gpupilot_xid_last_seen_timestamp_seconds{xid="79"} < 120`,
		`increase(DCGM_EXP_XID_ERRORS_TOTAL{xid="79"}[2m]) > 0`,
		`DCGM_EXP_XID_ERRORS_COUNT{xid="79"} > 0`,
		`DCGM_EXP_GPU_HEALTH_STATUS{health_watch="ALL"} >= 20`,
	}
	// blind are forms that do not see a first XID. The code of the field is a label too, here and with dcgm-exporter.
	blind = []string{
		`changes(DCGM_FI_DEV_XID_ERRORS[2m]) > 0`, `delta(DCGM_FI_DEV_XID_ERRORS[2m]) > 0`, `increase(gpupilot_xid_errors_total{xid="79"}[2m]) > 0`,
	}
)

// Each form of rule that compares with the past sees the first event, in a real Prometheus.
func TestFirstEvents(t *testing.T) {
	t.Parallel()
	promtest.Program(t, "prometheus")
	const bin = "../../../bin"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	collectors := filepath.Join(t.TempDir(), "collectors.csv")
	must(os.WriteFile(collectors, []byte(`DCGM_FI_DEV_XID_ERRORS, gauge, x
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, counter, x
DCGM_EXP_XID_ERRORS_COUNT, gauge, x
DCGM_EXP_XID_ERRORS_TOTAL, counter, x
DCGM_EXP_CLOCK_EVENTS_TOTAL, counter, x
DCGM_EXP_GPU_HEALTH_STATUS, gauge, x
`), 0o600))
	library := agentrig.NVML(bin, t.TempDir())
	const before = "gpus 2\ngpu * nvlinks 2\n"
	must(library.Set(before))
	agent, err := agentrig.Start(t.Context(), agentrig.Config{
		Binary: filepath.Join(bin, "gpupilot-agent"), Env: library.Env(), Args: append(library.Args(), "-f", collectors),
	})
	must(err)
	t.Cleanup(func() { _ = agent.Stop() })
	prometheus := promtest.Start(t, fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, static_configs: [{targets: [%q]}]}]\n",
		strings.TrimPrefix(agent.URL, "http://")))
	awaitQueries(t, prometheus, []string{
		`count_over_time(gpupilot_gpu_nvlink_errors_total[1m]) > 8`, `count_over_time(gpupilot_gpu_xid_errors_total[1m]) > 8`,
		`count_over_time(DCGM_FI_DEV_XID_ERRORS[1m] offset 20s) > 8`, `count_over_time(DCGM_EXP_CLOCK_EVENTS_TOTAL[1m]) > 8`,
	})
	const broken = before + "gpu 1 nvlink_replay 7\ngpu 1 clock_reasons 64\ngpu 1 xid 79\n"
	must(library.Set(broken))
	awaitQueries(t, prometheus, first)
	must(library.Set(broken + "gpu 1 xid 31\n"))
	awaitQueries(t, prometheus, append([]string{`DCGM_FI_DEV_XID_ERRORS == 31`}, hidden...))
	for _, q := range blind {
		if answers(t, prometheus, q) {
			t.Errorf("%s sees the error: say so in docs/monitoring.md", q)
		}
	}
}

// awaitQueries waits until each query has had an answer.
func awaitQueries(t *testing.T, prometheus string, queries []string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	left := slices.Clone(queries)
	for {
		left = slices.DeleteFunc(left, func(q string) bool { return answers(t, prometheus, q) })
		if len(left) == 0 {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("queries without an answer: %q", left)
		case <-tick.C:
		}
	}
}

// answers reports whether a query has a result.
func answers(t *testing.T, prometheus, query string) bool {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct{ Result []any }
	}
	ask(t, prometheus+"/api/v1/query?query="+url.QueryEscape(query), &answer)
	if answer.Status != "success" {
		t.Fatalf("%s: %s", query, answer.Error)
	}
	return len(answer.Data.Result) > 0
}

func ask(t *testing.T, address string, answer any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
}

// resetRequired are the calls of NVML that a GPU in need of a reset refuses.
var resetRequired = func() string {
	var b strings.Builder
	for _, call := range []string{"GetTemperature", "GetUtilizationRates", "GetMemoryInfo_v2", "GetMemoryInfo", "GetPowerUsage", "GetClockInfo", "GetFieldValues", "GetUUID", "GetRemappedRows", "GetTotalEnergyConsumption"} {
		fmt.Fprintf(&b, "gpu 3 fail %s RESET_REQUIRED\n", call)
	}
	return b.String()
}()

// alerts lists the firing alerts with their jobs.
func alerts(t *testing.T, prometheus string) (firing []string) {
	t.Helper()
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels map[string]string
				State  string
			}
		}
	}
	ask(t, prometheus+"/api/v1/alerts", &answer)
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			firing = append(firing, a.Labels["alertname"]+" "+a.Labels["job"])
		}
	}
	return firing
}
