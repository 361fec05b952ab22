// What only tests need of NVIDIA's DCGM: its headers, and its Go binding to ask our fake with.
module github.com/gpupilot/gpupilot/test/godcgm

go 1.26.7

require github.com/NVIDIA/go-dcgm v1.4611.0

require (
	github.com/bits-and-blooms/bitset v1.25.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
