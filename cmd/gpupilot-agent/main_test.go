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
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/logtest"
)

var servesAt = regexp.MustCompile(`msg=serving address=(\S+)`)

// patience bounds every wait for the running program. It is long because the
// machine may be busy: only a failure takes that long.
const patience = time.Minute

// start runs the program and returns its address. stop ends it, and fails the
// test if it does not end.
func start(t *testing.T, args ...string) (url string, out *logtest.Buffer, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out = &logtest.Buffer{}
	done := make(chan error, 1)
	go func() { done <- run(ctx, append([]string{"-a", "127.0.0.1:0"}, args...), out) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			t.Error("it does not stop")
		}
	})
	t.Cleanup(stop)
	until(t, func() bool {
		select {
		case err := <-done:
			done <- err
			t.Fatalf("it ended: %v\n%s", err, out)
		default:
		}
		if m := servesAt.FindStringSubmatch(out.String()); m != nil {
			url = "http://" + m[1]
		}
		return url != ""
	})
	return url, out, stop
}

// until polls a condition of a real process.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("it did not happen within %v", patience)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// kubelet is a pod-resources server with one pod.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	device string
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "llm-0", Namespace: "team", Containers: []*podresources.ContainerResources{{
			Name: "server", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{k.device}}},
		}},
	}}}, nil
}

func TestSimulatedNode(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &kubelet{device: sim.UUID("n1", 1)})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	url, _, stop := start(t, "--backend", "sim", "--sim-gpus", "2", "--node-name", "n1", "-c", "100", "-k", "--pod-resources-kubelet-socket", socket)
	until(t, func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
	var body string
	until(t, func() bool {
		_, body = get(t, url+"/metrics")
		return strings.Contains(body, "gpupilot_pod_resources_up 1\n") // and not its HELP
	})
	for _, want := range []string{
		fmt.Sprintf(`DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="%s",pci_bus_id="`, sim.UUID("n1", 0)),
		`,container="server",namespace="team",pod="llm-0"} `,
		fmt.Sprintf(`gpupilot_gpu_allocation_info{uuid="%s",namespace="team",pod="llm-0",container="server",replica=""} 1`, sim.UUID("n1", 1)),
		`hostname="n1"`, `gpupilot_backend_up{backend="sim"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
	if n := strings.Count(body, "\nDCGM_FI_DEV_GPU_UTIL{"); n != 2 {
		t.Errorf("%d GPUs", n)
	}
	stop()
}

// A read that hangs hides no other GPU, and does not keep the process alive.
func TestStopsWhileAReadHangs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	write := func(s sim.State) {
		t.Helper()
		if err := sim.WriteState(file, s); err != nil {
			t.Fatal(err)
		}
	}
	busy, hung := sim.Busy(10, 100), sim.Busy(10, 100)
	write(sim.State{GPUs: []sim.GPUState{busy, hung}})
	url, _, stop := start(t, "--backend", "sim", "--sim-gpus", "2", "--sim-state", file, "-c", "50", "-n")
	shows := func(want ...string) func() bool {
		return func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range want {
				if !strings.Contains(body, w) {
					return false
				}
			}
			return true
		}
	}
	until(t, shows("} 10\n"))
	hung.Hang = true
	write(sim.State{GPUs: []sim.GPUState{sim.Busy(63, 100), hung}})
	until(t, shows("} 63\n", "} 10\n"))
	stop()
}

func TestBadCollectorLinesDisableThemselves(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters.csv")
	csv := "# ours\nDCGM_FI_DEV_GPU_UTIL, gauge, Utilisation.\nDCGM_FI_DEV_NOPE, gauge, None.\nDCGM_FI_DEV_FB_USED, gauge\n"
	if err := os.WriteFile(file, []byte(csv), 0o600); err != nil {
		t.Fatal(err)
	}
	url, out, _ := start(t, "--backend", "sim", "-c", "100", "-f", file, "-n")
	var body string
	until(t, func() bool { _, body = get(t, url+"/metrics"); return strings.Contains(body, "DCGM_FI_DEV_GPU_UTIL{") })
	if !strings.Contains(body, "gpupilot_collectors_invalid_lines 2\n") || !strings.Contains(body, "# HELP DCGM_FI_DEV_GPU_UTIL Utilisation.\n") ||
		strings.Contains(body, "DCGM_FI_DEV_FB_USED") || strings.Contains(body, "hostname=") {
		t.Errorf("page:\n%s", body)
	}
	for _, want := range []string{"line=3", "DCGM_FI_DEV_NOPE", "line=4", "2 columns instead of 3"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, out)
		}
	}
}

func TestWhatCannotStart(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	f := func(args string, wants ...string) {
		t.Helper()
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if err == nil {
			t.Errorf("%s started", args)
			return
		}
		for _, w := range wants {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", args, err, w)
			}
		}
	}
	f("--backend auto --nvml-library "+missing, missing, "--backend sim", "--nvml-library")
	f("--backend sim -f /no/such/file.csv", "--collectors", "/no/such/file.csv")
	f("--backend sim --sim-gpus 1000", "--sim-gpus", "1000")
	f("--backend sim -a 127.0.0.1:99999", "--address", "99999")
	f("--profile 9", "--profile")
}

// A missing library is no reason to die for who asked for NVML: it may come.
func TestNVMLIsWaitedFor(t *testing.T) {
	url, _, _ := start(t, "--backend", "nvml", "--nvml-library", filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), "-c", "100")
	until(t, func() bool { code, _ := get(t, url+"/readyz"); return code == http.StatusOK })
	until(t, func() bool {
		code, body := get(t, url+"/metrics")
		return code == http.StatusOK && strings.Contains(body, `gpupilot_backend_up{backend="nvml"} 0`)
	})
}

func TestDcgmExportersFilesAreBuiltIn(t *testing.T) {
	url, out, _ := start(t, "--backend", "sim", "-c", "100", "-f", "/etc/dcgm-exporter/1.x-compatibility-metrics.csv")
	until(t, func() bool { _, b := get(t, url+"/metrics"); return strings.Contains(b, "dcgm_gpu_utilization{") })
	if !strings.Contains(out.String(), "built-in list") {
		t.Errorf("log:\n%s", out)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &out); err != nil || !strings.Contains(out.String(), "--collect-interval") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	if err := run(t.Context(), []string{"--version"}, &out); err != nil || !strings.HasPrefix(out.String(), "gpupilot-agent ") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// Files that are replaced by FIFOs hold up no request, no reload and no end.
func TestFIFOsInPlaceOfFiles(t *testing.T) {
	dir := t.TempDir()
	collectors, web, jobs := filepath.Join(dir, "counters.csv"), filepath.Join(dir, "web.yml"), filepath.Join(dir, "jobs")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(collectors, []byte("DCGM_FI_DEV_GPU_UTIL, gauge, Utilization\n"), 0o600))
	must(os.WriteFile(web, nil, 0o600))
	must(os.Mkdir(jobs, 0o700))
	must(os.WriteFile(filepath.Join(jobs, "0"), []byte("job-1\n"), 0o600))
	must(syscall.Mkfifo(filepath.Join(jobs, "1"), 0o600))
	ignored := make(chan os.Signal, 1) // a SIGHUP before the program expects it must not end the tests
	signal.Notify(ignored, syscall.SIGHUP)
	defer signal.Stop(ignored)
	reload := func() { must(syscall.Kill(os.Getpid(), syscall.SIGHUP)) }
	url, out, stop := start(t, "--backend", "sim", "-c", "100", "-f", collectors, "--web-config-file", web, "--hpc-job-mapping-dir", jobs)
	shows := func(text string) func() bool {
		return func() bool {
			code, body := get(t, url+"/metrics")
			return code == http.StatusOK && strings.Contains(body, text)
		}
	}
	until(t, shows(`hpc_job="job-1"`))
	for _, path := range []string{collectors, web} {
		must(os.Remove(path))
		must(syscall.Mkfifo(path, 0o600))
	}
	until(t, func() bool {
		reload()
		return strings.Contains(out.String(), "cannot use the new collectors") && strings.Contains(out.String(), "not a regular file")
	})
	until(t, shows("DCGM_FI_DEV_GPU_UTIL{"))
	must(os.Remove(collectors))
	must(os.WriteFile(collectors, []byte("DCGM_FI_DEV_GPU_TEMP, gauge, Temperature\n"), 0o600))
	until(t, func() bool {
		reload()
		return shows("DCGM_FI_DEV_GPU_TEMP{")()
	})
	must(os.Remove(collectors))
	must(syscall.Mkfifo(collectors, 0o600))
	stop()
	if _, err := os.Stat(collectors); err != nil {
		t.Error(err)
	}
}

// The agent serves with values that it adjusts, and says so.
func TestAdjustedStart(t *testing.T) {
	url, out, _ := start(t, "--backend", "sim", "-k", "--pod-resources-kubelet-socket=", "-c", "1", "-x", "0", "serve", "-d", "g:0")
	until(t, func() bool {
		code, body := get(t, url+"/metrics")
		return code == http.StatusOK && strings.Contains(body, `DCGM_FI_DEV_GPU_UTIL{gpu="7"`) && strings.Contains(body, "gpupilot_collection_interval_seconds 0.01")
	})
	for _, want := range []string{"flag=--pod-resources-kubelet-socket", "flag=--collect-interval given=1 used=10", "flag=--xid-count-window-size given=0 used=1", `arguments="serve -d g:0"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, out)
		}
	}
}

func TestUseOneCore(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	runtime.GOMAXPROCS(3)
	useOneCore(func(string) string { return "3" })
	if n := runtime.GOMAXPROCS(0); n != 3 {
		t.Errorf("%d cores although the environment has GOMAXPROCS", n)
	}
	useOneCore(func(string) string { return "" })
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("%d cores, want 1", n)
	}
}
