// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// amdPage is a page of AMD's device-metrics-exporter: two cards of the MI300 series with
// their default labels, of which a pod holds the second one. The first one reports a power
// that its firmware does not know.
const amdPage = `# HELP gpu_gfx_activity Graphics engine usage percentage
# TYPE gpu_gfx_activity gauge
gpu_gfx_activity{card_model="102-G30211",card_series="AMD Instinct MI300X",card_vendor="AMD",driver_version="6.12.12",gpu_compute_partition_type="spx",gpu_id="0",gpu_partition_id="0",hostname="n1",namespace="",pod="",container="",serial_number="69001"} 3
gpu_gfx_activity{card_model="102-G30211",card_series="AMD Instinct MI300X",card_vendor="AMD",driver_version="6.12.12",gpu_compute_partition_type="spx",gpu_id="1",gpu_partition_id="0",hostname="n1",namespace="ns",pod="p",container="c",serial_number="69002"} 87
# TYPE gpu_used_vram gauge
gpu_used_vram{gpu_id="1",hostname="n1",namespace="ns",pod="p",container="c",serial_number="69002"} 150000
# TYPE gpu_package_power gauge
gpu_package_power{gpu_id="0",hostname="n1",namespace="",pod="",container="",serial_number="69001"} 65535
gpu_package_power{gpu_id="1",hostname="n1",namespace="ns",pod="p",container="c",serial_number="69002"} 612
# TYPE gpu_power_usage gauge
gpu_power_usage{gpu_id="1",hostname="n1",namespace="ns",pod="p",container="c",serial_number="69002"} 999
# TYPE gpu_junction_temperature gauge
gpu_junction_temperature{gpu_id="1",hostname="n1",namespace="ns",pod="p",container="c",serial_number="69002"} 71
# TYPE gpu_nodes_total gauge
gpu_nodes_total{hostname="n1"} 2
`

func TestAMD(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	x.read(amdPage)
	if got := x.holders(); got != "69002/1:ns/p/c" {
		t.Errorf("holders %s", got)
	}
	x.want("p", gpu.GPUUtil, 87)
	x.want("p", gpu.FBUsed, 150000)
	x.want("p", gpu.PowerUsage, 612)
	x.want("p", gpu.GPUTemp, 71)
	if n := len(x.store.Devices("", nil, x.now, 1)); n > 2 {
		t.Errorf("%d devices", n)
	}
}

// The optional UUID names a device before its serial number.
func TestAMDByUUID(t *testing.T) {
	x := newReader(t, Target{Kind: DCGM})
	x.read(`gpu_gfx_activity{gpu_uuid="ccff74a1",gpu_id="2",serial_number="69001",namespace="ns",pod="p",container="c"} 5
gpu_edge_temperature{namespace="ns",pod="q",container="c"} 5
gpu_edge_temperature{gpu_id="3",namespace="ns",pod="q",container="c"} 5`)
	if got := x.holders(); got != "ccff74a1:ns/p/c" {
		t.Errorf("holders %s", got)
	}
}
