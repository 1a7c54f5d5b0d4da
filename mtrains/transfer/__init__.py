"""Tables from and to files of other libraries, as streams: .npy and .safetensors."""
