"""datatrove writes token files for pagestream."""

import sys

from datatrove.pipeline.tokens.tokenizer import TokenizedFile

for size in (2, 4):
    for metadata in (False, True):
        file = TokenizedFile(
            sys.argv[1],
            f"{size}_{metadata}.ds",
            save_loss_metadata=True,
            token_size=size,
            save_final_metadata=metadata,
            tokenizer_name_or_path="gpt2",
        )
        end = 0
        for length in [4, 0, 7, 1, 300]:
            file.write(list(range(end, end + length)), [True] * length)
            end += length
        file.close()
print("good")
