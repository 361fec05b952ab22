// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	benchFields   = 40
	benchInterval = time.Second
	// benchLimit bounds the scrapes of one case by time.
	benchLimit = 10 * time.Second
	// benchIdle is how long a program is left alone, to see what it costs without scrapes.
	benchIdle = 5 * time.Second
)

// cost is what a program takes. CPU is user and system time.
type cost struct {
	series, bytes, scrapes int
	p50, p99               time.Duration
	cpuScrape              time.Duration // each
	cpuIdle                time.Duration // a second, without scrapes
	rss                    uint64
}

// benchCases are nodes of eight GPUs, with pods.
func benchCases() []scenario {
	node := []string{
		"gpus 8", "gpu * energy 123456789", "gpu * util 57", "gpu * mem_util 12", "gpu * power 378.461", "gpu * fb_used 40960", "gpu * fan 30",
		"gpu * gpm_gr 0.5", "gpu * gpm_tensor 0.123456", "gpu * retired_sbe 0", "gpu * vgpu_license 1",
	}
	socket := []string{"-k", "--pod-resources-kubelet-socket", "{dir}/kubelet.sock"}
	whole := scenario{name: "8 GPUs", csv: benchCollectors(), state: node, args: socket}
	mig := scenario{name: "8×7 MIG", csv: whole.csv, state: append(slices.Clone(node), "gpu * mig 1g.18gb 7"), args: socket}
	shared := scenario{name: "8 GPUs × 4 sharers", csv: whole.csv, state: node, args: append(slices.Clone(socket), "--kubernetes-virtual-gpus")}
	for g := range 8 {
		whole.pods = append(whole.pods, pod{fmt.Sprintf("pod-%d", g), "nvidia.com/gpu", []string{uuid(g)}})
		for i := range 7 {
			mig.pods = append(mig.pods, pod{fmt.Sprintf("pod-%d-%d", g, i), "nvidia.com/mig-1g.18gb", []string{migUUID(g, 7+i)}})
		}
		for i := range 4 {
			shared.pods = append(shared.pods, pod{fmt.Sprintf("pod-%d-%d", g, i), "nvidia.com/gpu", []string{uuid(g) + "::" + strconv.Itoa(i)}})
		}
	}
	return []scenario{whole, mig, shared}
}

// benchCollectors are the first lines of numbers, and the driver as a label.
func benchCollectors() string {
	var b strings.Builder
	left := benchFields
	for line := range strings.Lines(fields + furtherFields) {
		if strings.HasPrefix(line, "DCGM_") && !strings.Contains(line, ", label,") && left > 0 {
			b.WriteString(line)
			left--
		}
	}
	b.WriteString("DCGM_FI_DRIVER_VERSION, label, Driver Version\n")
	return b.String()
}

// bench measures both programs, one after the other, and prints a table.
func (h *harness) bench(ctx context.Context, out io.Writer) error {
	h.cfg.interval = benchInterval
	w := tabwriter.NewWriter(out, 2, 0, 3, ' ', 0)
	fmt.Fprintln(w, "case\tprogram\tseries\tkB\tp50 ms\tp99 ms\tCPU ms/scrape\tCPU ms/s without scrapes\tRSS MiB\t")
	for i, s := range benchCases() {
		dir := filepath.Join(h.dir, "bench"+strconv.Itoa(i))
		n, err := prepare(s, dir)
		if err != nil {
			return err
		}
		for _, side := range []struct{ name, path, why string }{{"theirs", h.cfg.exporter, h.cannot(s)}, {"ours", h.cfg.agent, ""}} {
			if side.why != "" {
				fmt.Fprintf(w, "%s\t%s\t(%s)\n", s.name, side.name, side.why)
				continue
			}
			c, err := h.measure(ctx, side.path, s, n)
			if err != nil {
				n.stop()
				return fmt.Errorf("%s, %s: %w", s.name, side.name, err)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%.3f\t%.3f\t%.3f\t%.2f\t%.1f\t\n", s.name, side.name, c.series, c.bytes/1000,
				ms(c.p50), ms(c.p99), ms(c.cpuScrape), ms(c.cpuIdle), float64(c.rss)/(1<<20))
		}
		n.stop()
	}
	return w.Flush()
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measure runs one program and scrapes it over one connection, as fast as it
// answers.
func (h *harness) measure(ctx context.Context, path string, s scenario, n *node) (cost, error) {
	args := append([]string{"-c", strconv.FormatInt(benchInterval.Milliseconds(), 10), "-f", filepath.Join(n.dir, "collectors.csv")}, replaced(s.args, n.dir)...)
	p, err := h.start(ctx, path, args, s, n)
	if err != nil {
		return cost{}, err
	}
	defer p.stop(syscall.SIGTERM)
	page := request{path: "/metrics"}
	a, err := p.settled(ctx, page, benchInterval+benchInterval/5)
	if err != nil {
		return cost{}, err
	}
	c := cost{bytes: len(a.body), series: len(parsePage(a.body).series)}
	if a.status != http.StatusOK || c.series == 0 {
		return cost{}, fmt.Errorf("/metrics answers %d with %d series; it said:\n%s", a.status, c.series, p.tail())
	}
	pid := p.cmd.Process.Pid
	if c.cpuIdle, err = cpuOf(pid, func() error { p.sleep(ctx, benchIdle); return ctx.Err() }); err != nil {
		return cost{}, err
	}
	c.cpuIdle /= time.Duration(benchIdle.Seconds())
	var times []time.Duration
	total, err := cpuOf(pid, func() error {
		for until := time.Now().Add(benchLimit); len(times) < h.cfg.scrapes && time.Now().Before(until); {
			began := time.Now()
			if _, err := p.ask(ctx, page); err != nil {
				return err
			}
			times = append(times, time.Since(began))
		}
		return nil
	})
	if err != nil {
		return cost{}, err
	}
	slices.Sort(times)
	c.scrapes = len(times)
	c.p50, c.p99, c.cpuScrape = times[len(times)/2], times[len(times)*99/100], total/time.Duration(len(times))
	c.rss, err = agentrig.RSS(pid)
	return c, err
}

// cpuOf is the CPU time that a process uses while f runs.
func cpuOf(pid int, f func() error) (time.Duration, error) {
	before, err := agentrig.CPU(pid)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := agentrig.CPU(pid)
	return after - before, err
}
