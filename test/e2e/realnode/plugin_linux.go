// SPDX-License-Identifier: Apache-2.0

package realnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// GPUResource is the resource that the plugin offers.
const GPUResource = "nvidia.com/gpu"

// visibleDevices is the environment variable with a container's devices, for NVIDIA's container toolkit and our plugin.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// pluginSocket is the plugin's socket; the kubelet finds it by its name beside its own.
const pluginSocket = "gpupilot-test.sock"

// Plugin is a device plugin that offers devices by UUID, like NVIDIA's, and passes their UUIDs to each container.
type Plugin struct {
	deviceplugin.UnimplementedDevicePluginServer

	dir     string
	devices []string
	// registrations counts the kubelets that know the plugin: one more for each restart.
	registrations atomic.Int64
}

// NewPlugin offers the devices to the kubelet whose device plugin folder is dir.
func NewPlugin(dir string, devices []string) *Plugin {
	return &Plugin{dir: dir, devices: devices}
}

// Registrations returns how often a kubelet has accepted the plugin.
func (p *Plugin) Registrations() int64 { return p.registrations.Load() }

// Run serves until ctx ends. A kubelet that starts removes all sockets in its folder, so a plugin whose socket is gone
// serves anew and registers again; errors on the way, such as that of a kubelet that is not there, are tried again.
func (p *Plugin) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.serve(ctx); err != nil {
			wait(ctx, 100*time.Millisecond)
		}
	}
}

// serve serves on a new socket, registers it, and returns nil when the socket or ctx is gone.
func (p *Plugin) serve(ctx context.Context) error {
	socket := filepath.Join(p.dir, pluginSocket)
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, p)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // its error is that of Stop
	defer serving.Wait()
	defer server.Stop()
	if err := p.register(ctx); err != nil {
		return err
	}
	p.registrations.Add(1)
	for wait(ctx, 50*time.Millisecond) {
		if _, err := os.Stat(socket); err != nil {
			return nil
		}
	}
	return nil
}

// register registers the socket with the kubelet.
func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	kubelet := filepath.Join(p.dir, filepath.Base(deviceplugin.KubeletSocket))
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: pluginSocket, ResourceName: GPUResource,
	})
	return err
}

// GetDevicePluginOptions returns no options.
func (p *Plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

// ListAndWatch lists the devices once, all healthy, and stays open until the kubelet or the server goes.
func (p *Plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	list := &deviceplugin.ListAndWatchResponse{}
	for _, id := range p.devices {
		list.Devices = append(list.Devices, &deviceplugin.Device{ID: id, Health: deviceplugin.Healthy})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate names each container its devices in NVIDIA_VISIBLE_DEVICES.
func (p *Plugin) Allocate(_ context.Context, request *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	response := &deviceplugin.AllocateResponse{}
	for _, container := range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{visibleDevices: strings.Join(container.GetDevicesIds(), ",")},
		})
	}
	return response, nil
}

// wait waits for a time, and reports false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
