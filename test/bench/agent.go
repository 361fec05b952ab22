// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The bars are those of the agent's specification; the peer is dcgm-exporter
// 4.8.2 with the same series on an idle 2-core machine: 3.3 ms and 3.9 ms.
const (
	barScrapeP50 = 0.15 // ms, one saturating keep-alive client
	barScrapeCPU = 0.10 // ms of the agent's CPU per scrape
	barRSS       = 22   // MiB
	fieldsShown  = 40
	gpus         = 8
)

// benchAgent measures the agent on the fake NVML: 8 GPUs, 40 fields, a pod each.
func benchAgent(ctx context.Context, cfg config, out io.Writer) ([]Row, error) {
	dir, err := os.MkdirTemp("", "gpupilot-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stop, err := serveKubelet(filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return nil, err
	}
	defer stop()
	a, err := startAgent(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}
	defer a.stop()

	plain, err := a.scrape(ctx, cfg.scrapes, "")
	if err != nil {
		return nil, err
	}
	zipped, err := a.scrape(ctx, cfg.scrapes, "gzip")
	if err != nil {
		return nil, err
	}
	rss, err := residentMiB(a.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "agent: %d GPUs with pods, %d series, %d bytes a page, %d scrapes\n", gpus, plain.series, plain.bytes, cfg.scrapes)
	return []Row{
		atMost("scrape, 8 GPUs x 40 fields with pods, p50", plain.p50, "ms", barScrapeP50),
		figure("scrape, 8 GPUs x 40 fields with pods, p99", plain.p99, "ms"),
		atMost("scrape, 8 GPUs x 40 fields with pods, CPU", plain.cpu, "ms", barScrapeCPU),
		figure("scrape with gzip, p50", zipped.p50, "ms"),
		figure("scrape with gzip, CPU", zipped.cpu, "ms"),
		atMost("agent RSS after these scrapes", rss, "MiB", barRSS),
	}, nil
}

// agent is a running gpupilot-agent.
type agent struct {
	cmd  *exec.Cmd
	url  string
	logs bytes.Buffer
}

func startAgent(ctx context.Context, cfg config, dir string) (*agent, error) {
	collectors := filepath.Join(dir, "collectors.csv")
	if err := os.WriteFile(collectors, collectorsFile(), 0o644); err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "nvml.txt")
	if err := os.WriteFile(state, []byte("gpus 8\ngpu * util 57\ngpu * energy 123456789\ngpu * fan 30\n"), 0o644); err != nil {
		return nil, err
	}
	addr, err := freeAddress()
	if err != nil {
		return nil, err
	}
	a := &agent{url: "http://" + addr}
	a.cmd = exec.CommandContext(ctx, filepath.Join(cfg.bin, "gpupilot-agent"), "--backend", "nvml",
		"--nvml-library", filepath.Join(cfg.bin, "libnvidia-ml-fake.so"), "-a", addr, "-f", collectors, "-k",
		"--pod-resources-kubelet-socket", filepath.Join(dir, "kubelet.sock"))
	a.cmd.Env = append(os.Environ(), "GPUPILOT_FAKE_NVML="+state, "NODE_NAME=bench")
	a.cmd.Stdout, a.cmd.Stderr = &a.logs, &a.logs
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	if err := a.wait(ctx); err != nil {
		a.stop()
		return nil, fmt.Errorf("%w; it said:\n%s", err, a.logs.String())
	}
	return a, nil
}

// stop ends the agent and waits for it.
func (a *agent) stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	_ = a.cmd.Wait()
}

// wait returns when the agent shows every GPU with its pod.
func (a *agent) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		body, err := fetch(ctx, http.DefaultClient, a.url+"/metrics", "")
		if err == nil && strings.Count(string(body), `DCGM_FI_DEV_GPU_UTIL{`) == gpus && strings.Contains(string(body), `pod="pod-7"`) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent does not show %d GPUs with pods: %w (last error: %w)", gpus, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// cost is what a scrape costs: times in milliseconds.
type cost struct {
	p50, p99, cpu float64
	series, bytes int
}

// scrape scrapes n times over one connection, as fast as the agent answers.
func (a *agent) scrape(ctx context.Context, n int, encoding string) (cost, error) {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: 1}}
	defer client.CloseIdleConnections()
	body, err := fetch(ctx, client, a.url+"/metrics", "")
	if err != nil {
		return cost{}, err
	}
	c := cost{bytes: len(body)}
	for line := range bytes.Lines(body) {
		if line[0] != '#' {
			c.series++
		}
	}
	times := make([]float64, n)
	before, err := cpuTime(a.cmd.Process.Pid)
	if err != nil {
		return cost{}, err
	}
	for i := range times {
		start := time.Now()
		if _, err := fetch(ctx, client, a.url+"/metrics", encoding); err != nil {
			return cost{}, err
		}
		times[i] = ms(time.Since(start))
	}
	after, err := cpuTime(a.cmd.Process.Pid)
	if err != nil {
		return cost{}, err
	}
	slices.Sort(times)
	c.p50, c.p99, c.cpu = quantile(times, 0.5), quantile(times, 0.99), ms(after-before)/float64(n)
	return c, nil
}

func fetch(ctx context.Context, client *http.Client, url, encoding string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if encoding != "" {
		req.Header.Set("Accept-Encoding", encoding)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// collectorsFile lists 40 numeric fields that the fake gives, and the driver's
// version as a label.
func collectorsFile() []byte {
	var b bytes.Buffer
	left := fieldsShown
	for _, f := range gpu.Fields() {
		if f.Kind == gpu.Label || skipped[f.ID] || left == 0 {
			continue
		}
		kind := "gauge"
		if f.Kind == gpu.Counter {
			kind = "counter"
		}
		fmt.Fprintf(&b, "%s, %s, %q\n", f.Name, kind, f.Help)
		left--
	}
	fmt.Fprintln(&b, "DCGM_FI_DRIVER_VERSION, label, Version of the driver.")
	return b.Bytes()
}

// skipped are fields that the fake's H200 does not have.
var skipped = map[gpu.FieldID]bool{
	gpu.RetiredSBE: true, gpu.RetiredDBE: true, gpu.RetiredPending: true, gpu.VGPULicenseStatus: true,
}

// kubelet answers the pod-resources API: GPU i belongs to pod-i.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	out := &podresources.ListPodResourcesResponse{}
	for i := range gpus {
		out.PodResources = append(out.PodResources, &podresources.PodResources{
			Name: "pod-" + strconv.Itoa(i), Namespace: "llm",
			Containers: []*podresources.ContainerResources{{Name: "server", Devices: []*podresources.ContainerDevices{
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"nvidia" + strconv.Itoa(i)}},
			}}},
		})
	}
	return out, nil
}

func serveKubelet(socket string) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(s, kubelet{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends by Stop
	}()
	return func() { s.Stop(); <-done }, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// clockTick is the unit of /proc/PID/stat's times: USER_HZ is 100 on every
// Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// cpuTime is the CPU time that a process has used, user and system.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command's name, in parentheses, may hold spaces; utime and stime are
	// the 12th and 13th fields behind it.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var ticks int64
	for _, i := range []int{11, 12} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

func residentMiB(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 64)
			return n / 1024, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in /proc/%d/status", pid)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile is of sorted values, nearest rank.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
